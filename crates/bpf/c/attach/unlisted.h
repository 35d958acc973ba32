/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Connections of addresses that are not listed pass as if nothing were attached. One that begins with a
 * header is told: its sender's address was forgotten in the list, or changed on its way (NAT). */
#pragma once
#include "lib/sk.h"

/* The shortest header that the signatures of both versions fit into. */
#define SIGNATURE_LEN 12

/* Without branches: the verifier would follow each combination of them. */
static __always_inline int is_signature(const __u8 *start)
{
	static const __u8 v1[] = { 'P', 'R', 'O', 'X', 'Y', ' ' };
	static const __u8 v2[SIGNATURE_LEN] = "\r\n\r\n\0\r\nQUIT\n";
	__u8 other_v1 = 0, other_v2 = 0;

	for (__u32 i = 0; i < sizeof(v1); i++)
		other_v1 |= start[i] ^ v1[i];
	for (__u32 i = 0; i < sizeof(v2); i++)
		other_v2 |= start[i] ^ v2[i];
	return !other_v1 || !other_v2;
}

/* The backend on this host has not received a byte of the connection yet. */
static __always_inline int is_first_data(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *sk = look_up(skb, segment);

	if (!sk)
		return 0;
	int is_first = is_request(sk);
	if (!is_first && sk->state != BPF_TCP_LISTEN) {
		struct bpf_tcp_sock *tcp = bpf_tcp_sock(sk);
		is_first = tcp && tcp->bytes_received == 0;
	}
	bpf_sk_release(sk);
	return is_first;
}

/* A header that comes in parts of less than SIGNATURE_LEN bytes is not noticed. */
GLOBAL int begins_with_unlisted_header(struct __sk_buff *skb, const struct segment *segment)
{
	__u8 start[SIGNATURE_LEN];

	if (!segment || segment->payload_len < sizeof(start) ||
	    bpf_skb_load_bytes(skb, segment->payload_at, start, sizeof(start)))
		return 0;
	return is_signature(start) && is_first_data(skb, segment);
}
