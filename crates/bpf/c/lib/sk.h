/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Asks the kernel for the state of a connection. */
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

enum socket_state {
	NO_SOCKET,
	LISTENS,         /* only a listener: before the SYN, or after a cookie that is not answered here */
	ANSWERS_COOKIE,  /* only a listener, and this ACK answers one of its SYN cookies */
	HALF_OPEN,       /* our SYN-ACK is out, accept() knows nothing yet */
	OPEN,            /* or closing */
};

/* A cookie is this host's acknowledgement number minus one. It was made for the number to which the SYN was
 * shifted. */
static __always_inline int answers_cookie(struct bpf_sock *sk, const struct segment *segment,
					  __u32 shifted_seq)
{
	struct tcphdr tcp = {
		.source = segment->source_port,
		.dest = segment->destination_port,
		.seq = bpf_htonl(shifted_seq),
		.ack_seq = bpf_htonl(segment->ack),
		.doff = 5,
		.ack = 1,
	};
	if (segment->ip.version == 4) {
		struct iphdr ip = { .version = 4, .ihl = 5 };
		ip.saddr = segment->ip.source.word[3];
		ip.daddr = segment->ip.destination.word[3];
		return bpf_tcp_check_syncookie(sk, &ip, sizeof(ip), &tcp, sizeof(tcp)) == 0;
	}
	struct ipv6hdr ip = { .version = 6 };
	__builtin_memcpy(&ip.saddr, &segment->ip.source, sizeof(ip.saddr));
	__builtin_memcpy(&ip.daddr, &segment->ip.destination, sizeof(ip.daddr));
	return bpf_tcp_check_syncookie(sk, &ip, sizeof(ip), &tcp, sizeof(tcp)) == 0;
}

/* A lookup is expensive, so it is made only for a SYN, for the header, and for unknown connections.
 * `shifted_seq` is the header's start in the kernel's numbers. */
GLOBAL enum socket_state find_socket(struct __sk_buff *skb, const struct segment *segment, __u32 shifted_seq,
				     __u32 *family)
{
	if (!segment || !family)
		return NO_SOCKET;
	enum socket_state state;
	struct bpf_sock *sk = look_up(skb, segment);
	if (!sk)
		return NO_SOCKET;
	*family = sk->family;
	if (sk->state == BPF_TCP_LISTEN)
		state = answers_cookie(sk, segment, shifted_seq) ? ANSWERS_COOKIE : LISTENS;
	else if (is_request(sk))
		state = HALF_OPEN;
	else
		state = OPEN;
	bpf_sk_release(sk);
	return state;
}
