/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Connections of addresses that are not listed pass as if nothing were attached. One that begins with a
 * header is told: its sender's address was forgotten in the list, or changed on its way (NAT). */
#pragma once
#include "lib/sk.h"
#include "proxy_header/header.h"

/* The signatures of both versions fit into it. */
#define SIGNATURE_LEN 12

/* The backend on this host has not received a byte of the connection yet. */
static __always_inline int is_first_data(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *sk = look_up(skb, segment);

	if (!sk)
		return 0;
	struct bpf_tcp_sock *tcp = sk->state == BPF_TCP_LISTEN || is_request(sk) ? 0 : bpf_tcp_sock(sk);
	int is_first = is_request(sk) || (tcp && tcp->bytes_received == 0);
	bpf_sk_release(sk);
	return is_first;
}

/* A header that comes in parts of less than SIGNATURE_LEN bytes is not noticed. */
GLOBAL int begins_with_unlisted_header(struct __sk_buff *skb, const struct segment *segment)
{
	struct header_scratch *scratch = header_scratch();

	if (!segment || !scratch || segment->payload_len < SIGNATURE_LEN ||
	    bpf_skb_load_bytes(skb, segment->payload_at, scratch->start, SIGNATURE_LEN))
		return 0;
	return read_header(scratch, SIGNATURE_LEN, STREAM) != NOT_PROXY && is_first_data(skb, segment);
}
