/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Whether the kernel will find a segment undamaged. tc runs before the kernel verifies checksums, so a program
 * must verify a segment before it learns from it: each SYN, and each segment with a part of the header. */
#pragma once
#include "lib/reply.h"

/* The most bytes of one bpf_csum_diff() call (MAX_BPF_STACK). */
#define PIECE 512
/* 64 KB: longer segments were aggregated by the kernel (GRO), which leaves them CHECKSUM_PARTIAL. */
#define PIECES 128

struct piece {
	__u64 words[PIECE / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct piece);
} pieces SEC(".maps");

/* The kernel verifies this sum whatever the device says (ip_rcv_core). */
static __always_inline int is_ip_header_intact(struct __sk_buff *skb, const struct ip *ip, struct piece *piece)
{
	__u32 last = ip->payload_at - ip->at - 1;

	__builtin_memset(piece->words, 0, 64);
	asm volatile("%0 &= 63" : "+r"(last)); /* for the verifier: an IPv4 header has 20 to 60 bytes */
	if (bpf_skb_load_bytes(skb, ip->at, piece->words, last + 1))
		return 0;
	return fold(bpf_csum_diff(0, 0, (__be32 *)piece->words, 64, 0)) == 0;
}

/* CHECKSUM_PARTIAL: the packet comes from this host or through GRO, and its field holds no complete sum. The
 * kernel accepts it. No helper reports this directly, but bpf_l4_csum_replace() leaves the field unchanged
 * only then. */
static __always_inline int is_sum_still_to_come(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 at = segment->ip.payload_at + offsetof(struct tcphdr, check);
	__be16 before, after;

	if (bpf_skb_load_bytes(skb, at, &before, sizeof(before)))
		return 0;
	if (bpf_l4_csum_replace(skb, at, 0, 1, 0) || bpf_skb_load_bytes(skb, at, &after, sizeof(after)))
		return 0;
	if (before == after)
		return 1;
	bpf_skb_store_bytes(skb, at, &before, sizeof(before), 0);
	return 0;
}

/* 0 if the segment's sum is right. If the field is 0: the sum that belongs there. Nonzero if the segment can't be read. */
static __always_inline __be16 sum_of(struct __sk_buff *skb, const struct segment *segment, struct piece *piece)
{
	__u32 at = segment->ip.payload_at, end = segment->ip.end;
	__s64 sum = pseudo_header(&segment->ip.source, &segment->ip.destination, segment->ip.version, end - at);

	for (__u32 i = 0; i < PIECES; i++) {
		if (at + PIECE > end)
			break;
		if (bpf_skb_load_bytes(skb, at, piece->words, PIECE))
			return 1;
		sum = bpf_csum_diff(0, 0, (__be32 *)piece->words, PIECE, sum);
		at += PIECE;
	}
	__u32 rest = end - at;
	if (rest >= PIECE)
		return 1;
	if (rest > 0) {
		__u32 last = rest - 1;
		asm volatile("%0 &= 511" : "+r"(last));
		piece->words[last / 8] = 0; /* the bytes may not fill the last word */
		if (bpf_skb_load_bytes(skb, at, piece->words, last + 1))
			return 1;
		sum = bpf_csum_diff(0, 0, (__be32 *)piece->words, (last | 3) + 1, sum);
	}
	return fold(sum);
}

GLOBAL int is_intact(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 only = 0;

	if (!segment)
		return 0;
	struct piece *piece = bpf_map_lookup_elem(&pieces, &only);
	if (!piece)
		return 0;
	if (segment->ip.version == 4 && !is_ip_header_intact(skb, &segment->ip, piece))
		return 0;
	/* CHECKSUM_UNNECESSARY: the device has verified it, and the kernel trusts that. */
	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0 || is_sum_still_to_come(skb, segment))
		return 1;
	return sum_of(skb, segment, piece) == 0;
}
