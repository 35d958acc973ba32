/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Rewriting a TCP header and its addresses. The sum is updated by the difference: a damaged segment stays
 * damaged. */
#pragma once
#include "lib/reply.h"

/* A header and what becomes of it. */
struct rewriting {
	struct tcphdr was, is;
	struct options *options; /* as they will be; NULL: none */
	struct options *options_were;
};

/* The options before they were changed. */
SCRATCH(options_were, struct options);

static __always_inline int begin_rewriting(struct __sk_buff *skb, const struct segment *segment,
					   struct rewriting *rewriting)
{
	if (bpf_skb_load_bytes(skb, segment->ip.payload_at, &rewriting->was, sizeof(rewriting->was)))
		return -1;
	rewriting->is = rewriting->was;
	rewriting->options = read_options(skb, segment);
	rewriting->options_were = ONLY_ENTRY(options_were);
	if (!rewriting->options_were)
		return -1;
	/* read_options() has no other reason to fail. */
	if (!rewriting->options)
		return segment->tcp_header_len == sizeof(struct tcphdr) ? 0 : -1;
	__builtin_memcpy(rewriting->options_were, rewriting->options, sizeof(*rewriting->options));
	return 0;
}

static __always_inline __s64 difference(const void *was, const void *is, __u32 len, __s64 sum)
{
	return bpf_csum_diff((__be32 *)was, len, (__be32 *)is, len, sum);
}

/* Writes header and options. Where options stand at odd places, sums of words would be wrong: so all of them
 * are compared. */
static __always_inline int finish_rewriting(struct __sk_buff *skb, const struct segment *segment,
					    const struct rewriting *rewriting)
{
	__s64 sum = difference(&rewriting->was, &rewriting->is, sizeof(rewriting->is), 0);

	if (bpf_skb_store_bytes(skb, segment->ip.payload_at, &rewriting->is, sizeof(rewriting->is),
				BPF_F_INVALIDATE_HASH))
		return -1;
	if (rewriting->options) {
		sum = difference(rewriting->options_were->bytes, rewriting->options->bytes,
				 sizeof(rewriting->options->bytes), sum);
		if (write_options(skb, segment, rewriting->options))
			return -1;
	}
	return bpf_l4_csum_replace(skb, tcp_check_at(segment), 0, sum, 0);
}

/* The addresses of the other connection, which is of the same family. */
static __always_inline int change_addresses(struct __sk_buff *skb, const struct segment *segment,
					    const struct address *source, const struct address *destination)
{
	__s64 sum = difference(&segment->ip.source, source, sizeof(*source), 0);

	sum = difference(&segment->ip.destination, destination, sizeof(*destination), sum);
	if (bpf_l4_csum_replace(skb, tcp_check_at(segment), 0, sum, BPF_F_PSEUDO_HDR))
		return -1;
	/* Of IPv6 the device's sum over the packet (CHECKSUM_COMPLETE) covers the addresses, and with the
	 * change of the sum above it stays as it was. The helper has taken it for IPv4, whose header has a
	 * sum of its own: undone. Others' packets answer with an error. */
	if (segment->ip.version == 6)
		bpf_csum_update(skb, sum);
	else if (bpf_l3_csum_replace(skb, segment->ip.at + offsetof(struct iphdr, check), 0, sum, 0))
		return -1;
	return write_addresses(skb, &segment->ip, source, destination);
}
