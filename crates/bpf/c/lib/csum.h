/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The internet checksum (RFC 1071, RFC 1624): differences, sums of a packet's bytes, and whether the kernel
 * will find a packet intact. tc runs before the kernel verifies checksums, so a program must verify a packet
 * before it learns from it. */
#pragma once
#include "lib/tcp.h"

static __always_inline __be16 fold(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline __u32 fold_to_word(__u64 sum)
{
	sum = (__u32)sum + (sum >> 32);
	return (__u32)sum + (__u32)(sum >> 32);
}

/* Adds the difference of one word, not folded yet. Written by hand: the kernel's helper takes longer. */
static __always_inline __u64 changed(__u64 sum, __be32 was, __be32 is)
{
	return sum + (__u32)~was + is;
}

static __always_inline __u64 changed_words(__u64 sum, const void *was, const void *is, __u32 count)
{
#pragma unroll
	for (__u32 i = 0; i < count; i++)
		sum = changed(sum, ((const __be32 *)was)[i], ((const __be32 *)is)[i]);
	return sum;
}

static __always_inline __u32 subtract_sum(__u32 from, __u32 sum)
{
	return fold_to_word((__u64)from + (__u32)~sum);
}

/* The sum of the same bytes at an offset that is one byte higher. */
static __always_inline __u32 swap_sum(__u32 sum)
{
	__u16 folded = ~fold(sum);

	return (folded & 0xff) << 8 | folded >> 8;
}

/* The sum of addresses, length and protocol (RFC 9293, 3.1; RFC 768; RFC 8200, 8.1). The prefix of a mapped
 * IPv4 address counts as nothing: it sums up to 0xffff. */
static __always_inline __u32 pseudo_header(const struct address *source, const struct address *destination,
					   __u32 len, __u8 protocol)
{
	__u64 sum = (__u64)bpf_htonl(len) + bpf_htonl(protocol);

#pragma unroll
	for (__u32 i = 0; i < 4; i++)
		sum += (__u64)source->word[i] + destination->word[i];
	return fold_to_word(sum);
}

/* The most bytes of one bpf_csum_diff() call (MAX_BPF_STACK). */
#define PIECE 512
/* 64 KB: longer segments were aggregated by the kernel (GRO), which leaves them CHECKSUM_PARTIAL. */
#define PIECES 128

struct piece {
	__u64 words[PIECE / 8];
};

SCRATCH(pieces, struct piece);

/* Adds the `len` bytes at `at` to `sum`. Nonzero: it failed. The last piece stands after the loop: within it,
 * the verifier would follow each round's last piece through all further rounds. */
GLOBAL int sum_bytes(struct __sk_buff *skb, __u32 at, __u32 len, __u32 *sum)
{
	struct piece *piece = ONLY_ENTRY(pieces);

	if (!piece || !sum)
		return -1;
	for (__u32 i = 0; i < PIECES && len > PIECE; i++) {
		if (bpf_skb_load_bytes(skb, at, piece->words, PIECE))
			return -1;
		*sum = bpf_csum_diff(0, 0, (__be32 *)piece->words, PIECE, *sum);
		at += PIECE;
		len -= PIECE;
	}
	if (len == 0 || len > PIECE)
		return len ? -1 : 0;
	__u32 last = len - 1;

	asm volatile("%0 &= 511" : "+r"(last)); /* for the verifier */
	piece->words[last / 8] = 0; /* the bytes may not fill the last word */
	if (bpf_skb_load_bytes(skb, at, piece->words, last + 1))
		return -1;
	*sum = bpf_csum_diff(0, 0, (__be32 *)piece->words, (last | 3) + 1, *sum);
	return 0;
}

/* CHECKSUM_PARTIAL: the packet comes from this host or through GRO, and its field holds no complete sum. The
 * kernel accepts it. No helper reports this directly, but bpf_l4_csum_replace() leaves the field unchanged
 * only then. */
static __always_inline int is_partial(struct __sk_buff *skb, __u32 check_at)
{
	__be16 before, after;

	if (bpf_skb_load_bytes(skb, check_at, &before, sizeof(before)))
		return 0;
	if (bpf_l4_csum_replace(skb, check_at, 0, 1, 0) || bpf_skb_load_bytes(skb, check_at, &after, sizeof(after)))
		return 0;
	if (before == after)
		return 1;
	bpf_skb_store_bytes(skb, check_at, &before, sizeof(before), 0);
	return 0;
}

/* 0 if the sum of `len` bytes of TCP or UDP is right. If the field is 0: the sum that belongs there. Nonzero
 * if the packet can't be read. */
static __always_inline __be16 payload_sum(struct __sk_buff *skb, const struct ip *ip, __u32 len,
					  __u8 protocol)
{
	__u32 sum = pseudo_header(&ip->source, &ip->destination, len, protocol);

	return sum_bytes(skb, ip->payload_at, len, &sum) ? 1 : fold(sum);
}

/* The kernel verifies this sum whatever the device says (ip_rcv_core). */
static __always_inline int is_ip_intact(struct __sk_buff *skb, const struct ip *ip)
{
	__u32 sum = 0;

	return ip->version != 4 || (!sum_bytes(skb, ip->at, ip->payload_at - ip->at, &sum) && !fold(sum));
}

/* Whether the kernel will find `len` bytes of TCP or UDP intact, and the IP header. */
static __always_inline int is_payload_intact(struct __sk_buff *skb, const struct ip *ip, __u32 len,
					     __u32 check_at, __u8 protocol)
{
	__be16 check;

	if (!is_ip_intact(skb, ip))
		return 0;
	/* CHECKSUM_UNNECESSARY: the device has verified it, and the kernel trusts that. */
	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return 1;
	if (bpf_skb_load_bytes(skb, check_at, &check, sizeof(check)))
		return 0;
	/* Usually such a field holds the pseudo header's sum: summing up all bytes would take longer. */
	__be16 pseudo = ~fold(pseudo_header(&ip->source, &ip->destination, len, protocol));
	if (check == pseudo && is_partial(skb, check_at))
		return 1;
	return payload_sum(skb, ip, len, protocol) == 0 || is_partial(skb, check_at);
}

/* For segments that begin or end a connection. */
GLOBAL int is_intact(struct __sk_buff *skb, const struct segment *segment)
{
	if (!segment)
		return 0;
	const struct ip *ip = &segment->ip;

	return is_payload_intact(skb, ip, ip->end - ip->payload_at, tcp_check_at(segment), IPPROTO_TCP);
}
