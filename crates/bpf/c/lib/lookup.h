/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The socket that the kernel has for a TCP segment. */
#pragma once
#include "lib/fib.h"
#include "lib/tcp.h"

/* NULL: none. The caller releases it. */
static __always_inline struct bpf_sock *look_up(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock_tuple tuple = {};
	__u32 len = tuple_of(&segment->ip, segment->source_port, segment->destination_port, &tuple);

	return bpf_skc_lookup_tcp(skb, &tuple, len, BPF_F_CURRENT_NETNS, 0);
}

/* A handshake is pending: our SYN-ACK is out, accept() knows nothing yet. */
static __always_inline int is_request(const struct bpf_sock *sk)
{
	return sk->state == BPF_TCP_NEW_SYN_RECV || sk->state == BPF_TCP_SYN_RECV;
}
