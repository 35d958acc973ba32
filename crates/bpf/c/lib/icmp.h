/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* ICMP errors: which there are, and the one that a program makes of a segment that is too long for the next
 * device, as a router answers it (bpf_redirect_neigh() bypasses the kernel's own check). */
#pragma once
#include "lib/csum.h"

#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58

struct icmp_start {
	__u8 type, code;
	__be16 check;
	__be32 rest;
};

/* The types that tcp_v4_err() and tcp_v6_err() handle. */
static __always_inline int is_error(__u8 version, __u8 type)
{
	/* Unreachable, time exceeded, parameter problem; unreachable, too big, time exceeded, parameter problem. */
	return version == 4 ? type == 3 || type == 11 || type == 12 : type >= 1 && type <= 4;
}

/* If the segment came without a TCP sum (CHECKSUM_PARTIAL), the device that sends the answer writes one into
 * the quoted header, and the sum of ICMP, which covers that, becomes wrong. So the field gets the one value
 * that the device's sum does not change: with the words of the header summing up to r, f = -(r + f), that is,
 * f = -r / 2 in the arithmetic modulo 65535. Nobody reads a quoted sum. */
static __always_inline __be16 sum_that_stays(const struct tcphdr *quoted)
{
	struct tcphdr tcp = *quoted;

	tcp.check = 0;
	return (__u64)fold(bpf_csum_diff(0, 0, (__be32 *)&tcp, sizeof(tcp), 0)) * 32768 % 65535;
}

/* Both errors are built in a map, because the verifier allows little stack. The map is cleared first, so
 * zeros follow the quote. */
struct v4_error {
	struct iphdr ip;
	struct icmp_start icmp;
	__u8 quote[60 + sizeof(struct tcphdr)]; /* of an IP header with all options */
};

_Static_assert(sizeof(struct v4_error) == 108, "become_too_long() clears 128 bytes");

struct v6_error {
	struct ipv6hdr ip;
	struct icmp_start icmp;
	__u8 quote[sizeof(struct ipv6hdr) + sizeof(struct tcphdr)];
};

static __always_inline int read_quoted(struct __sk_buff *skb, __u32 at, __u8 *quote, __u32 len)
{
	__u32 last = len - 1;

	asm volatile("%0 &= 127" : "+r"(last)); /* for the verifier */
	if (last >= sizeof(((struct v4_error *)0)->quote))
		return -1;
	return bpf_skb_load_bytes(skb, at, quote, last + 1);
}

/* "Fragmentation needed" (RFC 792, RFC 1191). */
static __always_inline int write_v4_error(struct __sk_buff *skb, struct v4_error *error,
					  const struct flow_key *key, __u32 at, __u32 len, __u32 mtu)
{
	const __u32 headers = offsetof(struct v4_error, quote);

	if (read_quoted(skb, at + headers, error->quote, len))
		return -1;
	error->ip.version = 4;
	error->ip.ihl = 5;
	error->ip.tos = 0xc0; /* as the kernel's errors (RFC 1812, 4.3.2.5) */
	error->ip.tot_len = bpf_htons(headers + len);
	error->ip.ttl = 64;
	error->ip.protocol = IPPROTO_ICMP;
	error->ip.saddr = key->local.word[3];
	error->ip.daddr = key->remote.word[3];
	error->ip.check = fold(bpf_csum_diff(0, 0, (__be32 *)&error->ip, sizeof(error->ip), 0));
	error->icmp.type = 3;
	error->icmp.code = 4;
	error->icmp.rest = bpf_htonl(mtu);
	error->icmp.check = fold(bpf_csum_diff(0, 0, (__be32 *)&error->icmp, sizeof(*error) - sizeof(error->ip), 0));
	return bpf_skb_store_bytes(skb, at, error, headers, BPF_F_INVALIDATE_HASH);
}

/* "Packet too big" (RFC 4443, 3.2). The addresses, length and protocol are summed up with it. */
static __always_inline int write_v6_error(struct __sk_buff *skb, struct v6_error *error,
					  const struct flow_key *key, __u32 at, __u32 mtu)
{
	const __u32 headers = offsetof(struct v6_error, quote), addresses = offsetof(struct ipv6hdr, saddr);
	__be32 pseudo[2] = { bpf_htonl(sizeof(*error) - sizeof(error->ip)), bpf_htonl(IPPROTO_ICMPV6) };

	if (bpf_skb_load_bytes(skb, at + headers, error->quote, sizeof(error->quote)))
		return -1;
	error->ip.version = 6;
	error->ip.payload_len = bpf_htons(sizeof(*error) - sizeof(error->ip));
	error->ip.nexthdr = IPPROTO_ICMPV6;
	error->ip.hop_limit = 64;
	__builtin_memcpy(&error->ip.saddr, &key->local, sizeof(key->local));
	__builtin_memcpy(&error->ip.daddr, &key->remote, sizeof(key->remote));
	error->icmp.type = 2;
	error->icmp.rest = bpf_htonl(mtu);
	__u64 sum = bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), 0);
	error->icmp.check = fold(bpf_csum_diff(0, 0, (__be32 *)&error->ip.saddr, sizeof(*error) - addresses, sum));
	return bpf_skb_store_bytes(skb, at, error, headers, BPF_F_INVALIDATE_HASH);
}

/* The segment becomes the error about itself, with its IP and TCP header quoted. */
GLOBAL int become_too_long(struct __sk_buff *skb, const struct segment *segment, const struct flow_key *key,
			   __u32 mtu)
{
	if (!segment || !key)
		return -1;
	int is_ipv6 = segment->ip.version == 6;
	__u32 at = segment->ip.at, len = segment->ip.payload_at + sizeof(struct tcphdr) - at;
	__u32 room = sizeof(struct icmp_start) + (is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	struct ethhdr link;
	struct tcphdr tcp;
	struct piece *piece = ONLY_ENTRY(pieces);

	if (!piece)
		return -1;
	__builtin_memset(piece->words, 0, 128);
	if (at != sizeof(link) || bpf_skb_change_tail(skb, at + len, 0))
		return -1;
	if (bpf_skb_load_bytes(skb, 0, &link, sizeof(link)) ||
	    bpf_skb_load_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp)))
		return -1;
	tcp.check = sum_that_stays(&tcp);
	if (bpf_skb_store_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp), 0) ||
	    bpf_skb_change_head(skb, room, 0))
		return -1;
	if (bpf_skb_store_bytes(skb, 0, &link, sizeof(link), 0))
		return -1;
	swap_link_addresses(skb);
	return is_ipv6 ? write_v6_error(skb, (struct v6_error *)piece, key, at, mtu) :
			 write_v4_error(skb, (struct v4_error *)piece, key, at, len, mtu);
}
