/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Headers as nearly all segments have them: IP without options, and TCP with timestamps only, in the kernel's
 * layout. They are read and written in one piece each, and the differences of the sums are computed here:
 * this takes a third of the time of rewrite.h, which knows all others. */
#pragma once
#include "lib/tcp_opts.h"
#include "lib/reply.h"

struct usual_tcp {
	struct tcphdr tcp;
	__be32 layout; /* ONLY_TIMESTAMPS */
	__be32 value, echo;
};

#define USUAL_WORDS (sizeof(struct usual_tcp) / sizeof(__be32))

struct usual_v4 {
	struct iphdr ip;
	struct usual_tcp tcp;
};

struct usual_v6 {
	struct address source, destination;
	struct usual_tcp tcp;
};

_Static_assert(sizeof(struct usual_v4) == 52 && sizeof(struct usual_v6) == 64,
	       "no gaps: they are written in one piece");

/* Nonzero: the headers are not as usual. */
static __always_inline int read_usual(struct __sk_buff *skb, const struct segment *segment,
				      struct usual_tcp *out)
{
	__u32 ip_header_len = segment->ip.version == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	if (segment->tcp_header_len != sizeof(*out) || segment->ip.payload_at - segment->ip.at != ip_header_len)
		return -1;
	if (LOAD_HEADER(skb, segment->ip.payload_at, out))
		return -1;
	return out->layout != ONLY_TIMESTAMPS;
}

/* Changes the field of the sum by two differences: of what the sum covers, and of the pseudo header. The
 * kernel knows which of them the field holds. */
static __always_inline int change_sum(struct __sk_buff *skb, const struct segment *segment, __u32 covered,
				      __u32 pseudo)
{
	__u32 at = tcp_check_at(segment);

	return bpf_l4_csum_replace(skb, at, 0, covered, 0) ||
	       bpf_l4_csum_replace(skb, at, 0, pseudo, BPF_F_PSEUDO_HDR);
}

static __always_inline int write_usual_v4(struct __sk_buff *skb, const struct segment *segment,
					  const struct usual_tcp *tcp, __u32 covered,
					  const struct flow_key *key)
{
	struct usual_v4 headers;

	if (LOAD_HEADER(skb, segment->ip.at, &headers.ip))
		return -1;
	__u64 sum = changed(changed(0, headers.ip.saddr, key->local.word[3]), headers.ip.daddr, key->remote.word[3]);
	headers.ip.saddr = key->local.word[3];
	headers.ip.daddr = key->remote.word[3];
	headers.ip.check = fold(fold_to_word(sum) + (__u64)(__u16)~headers.ip.check);
	headers.tcp = *tcp;
	if (bpf_skb_store_bytes(skb, segment->ip.at, &headers, sizeof(headers), BPF_F_INVALIDATE_HASH))
		return -1;
	return change_sum(skb, segment, covered, fold_to_word(sum));
}

/* As change_addresses() says: the device's sum over an IPv6 packet stays as it was. */
static __always_inline int write_usual_v6(struct __sk_buff *skb, const struct segment *segment,
					  const struct usual_tcp *tcp, __u32 covered,
					  const struct flow_key *key)
{
	struct usual_v6 headers = { key->local, key->remote, *tcp };
	__u64 sum = changed_words(0, &segment->ip.source, &key->local, 4);
	__u32 pseudo = fold_to_word(changed_words(sum, &segment->ip.destination, &key->remote, 4));

	if (bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct ipv6hdr, saddr), &headers,
				sizeof(headers), BPF_F_INVALIDATE_HASH))
		return -1;
	if (change_sum(skb, segment, covered, pseudo))
		return -1;
	bpf_csum_update(skb, pseudo);
	return 0;
}

/* Writes `is` and the addresses of the other connection, which has the same family. */
static __always_inline int write_usual(struct __sk_buff *skb, const struct segment *segment,
				       const struct usual_tcp *was, const struct usual_tcp *is,
				       const struct flow_key *key)
{
	__u32 covered = fold_to_word(changed_words(0, was, is, USUAL_WORDS));

	return segment->ip.version == 6 ? write_usual_v6(skb, segment, is, covered, key) :
					  write_usual_v4(skb, segment, is, covered, key);
}
