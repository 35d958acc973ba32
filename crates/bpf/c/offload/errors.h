/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* ICMP errors about translated segments go on to the peer that sent the segment, in the numbers of its own
 * connection. Otherwise the peer would not learn that a path's MTU has shrunk, and would repeat too long
 * segments for ever.
 *
 *   router ── error [ us → B, number n ] ──▶ us   becomes   us ── error [ A → us, number n - shift ] ──▶ A
 */
#pragma once
#include "lib/icmp.h"
#include "offload/translate.h"

/* As much of a TCP header as every router quotes (RFC 792). */
struct quoted_tcp {
	__be16 source, destination;
	__be32 seq;
};

struct quote {
	struct segment error; /* only `ip` is filled in; its payload is the ICMP header */
	struct flow_key key;  /* the quoted segment went to `remote` of this key */
	__u32 at, tcp_at;     /* offsets of the quoted headers */
	struct quoted_tcp tcp;
};

/* The verifier allows little stack. */
SCRATCH(quotes, struct quote);

static __always_inline int read_quoted_ip(struct __sk_buff *skb, struct quote *quote)
{
	if (quote->error.ip.version == 4) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, quote->at, &ip, sizeof(ip)))
			return -1;
		if (ip.version != 4 || ip.ihl < 5 || ip.protocol != IPPROTO_TCP || ip.frag_off & bpf_htons(0x1fff))
			return -1;
		quote->tcp_at = quote->at + ip.ihl * 4;
		map_ipv4(&quote->key.local, ip.saddr);
		map_ipv4(&quote->key.remote, ip.daddr);
		return 0;
	}
	__u8 next;

	if (bpf_skb_load_bytes(skb, quote->at + offsetof(struct ipv6hdr, nexthdr), &next, sizeof(next)) ||
	    next != IPPROTO_TCP)
		return -1;
	quote->tcp_at = quote->at + sizeof(struct ipv6hdr);
	if (bpf_skb_load_bytes(skb, quote->at + offsetof(struct ipv6hdr, saddr), &quote->key.local,
			       sizeof(struct address)))
		return -1;
	return bpf_skb_load_bytes(skb, quote->at + offsetof(struct ipv6hdr, daddr), &quote->key.remote,
				  sizeof(struct address));
}

/* Nonzero: it is no error about a TCP segment. */
static __always_inline int read_quote(struct __sk_buff *skb, struct quote *quote)
{
	struct icmp_start icmp;

	if (read_ip(skb, skb->protocol == bpf_htons(ETH_P_IP) ? IPPROTO_ICMP : IPPROTO_ICMPV6,
		    &quote->error.ip) || quote->error.ip.is_fragment)
		return -1;
	if (LOAD_HEADER(skb, quote->error.ip.payload_at, &icmp) || !is_error(quote->error.ip.version, icmp.type))
		return -1;
	quote->at = quote->error.ip.payload_at + sizeof(icmp);
	if (read_quoted_ip(skb, quote) || bpf_skb_load_bytes(skb, quote->tcp_at, &quote->tcp, sizeof(quote->tcp)))
		return -1;
	quote->key.local_port = quote->tcp.source;
	quote->key.remote_port = quote->tcp.destination;
	return 0;
}

static __always_inline __be16 changed_sum(__be16 check, __u64 difference)
{
	return fold((__u64)(__u16)~check + difference);
}

/* Writes the addresses of the other connection into the quoted header. Over an IPv4 header ICMP's sum stays
 * the same, because that header's own sum changes with it. */
static __always_inline int change_quoted_ip(struct __sk_buff *skb, const struct quote *quote,
					    const struct face *from, __u64 *sum)
{
	const struct address *source = &from->key.remote, *destination = &from->key.local;
	__u32 at = quote->at, check_at = at + offsetof(struct iphdr, check);
	__u32 moved = difference(&quote->key.local, source, sizeof(*source), 0);
	__be16 check;

	moved = difference(&quote->key.remote, destination, sizeof(*destination), moved);
	if (quote->error.ip.version == 6) {
		*sum += moved;
		if (bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, saddr), source, sizeof(*source), 0))
			return -1;
		return bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, daddr), destination, sizeof(*destination), 0);
	}
	if (bpf_skb_load_bytes(skb, check_at, &check, sizeof(check)))
		return -1;
	check = changed_sum(check, moved);
	if (bpf_skb_store_bytes(skb, check_at, &check, sizeof(check), 0))
		return -1;
	if (bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, saddr), &source->word[3], sizeof(__be32), 0))
		return -1;
	return bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, daddr), &destination->word[3],
				   sizeof(__be32), 0);
}

/* The error gets the address that the peer's segments go to as its source: the peer's firewall expects that,
 * and a router's address might be link-local. The sum of ICMPv6 covers the addresses; IPv4's header has its
 * own. */
static __always_inline int change_error_ip(struct __sk_buff *skb, const struct quote *quote,
					   const struct face *from, __u64 *sum)
{
	__u32 own = difference(&quote->error.ip.source, &from->key.local, sizeof(struct address), 0);

	own = difference(&quote->error.ip.destination, &from->key.remote, sizeof(struct address), own);
	if (quote->error.ip.version == 6)
		*sum += own;
	else if (bpf_l3_csum_replace(skb, quote->error.ip.at + offsetof(struct iphdr, check), 0, own, 0))
		return -1;
	return write_addresses(skb, &quote->error.ip, &from->key.local, &from->key.remote);
}

/* The sum is changed by the difference, so a damaged error stays damaged. Errors of this host have a whole
 * sum, too: the kernel computes ICMP's itself. */
static __always_inline int translate_error(struct __sk_buff *skb, const struct quote *quote,
					   const struct face *from)
{
	struct quoted_tcp is = {
		.source = from->key.remote_port,
		.destination = from->key.local_port,
		.seq = bpf_htonl(bpf_ntohl(quote->tcp.seq) - from->shift),
	};
	__u32 check_at = quote->error.ip.payload_at + offsetof(struct icmp_start, check);
	__u64 sum = (__u32)difference(&quote->tcp, &is, sizeof(is), 0);
	__be16 check;

	if (change_quoted_ip(skb, quote, from, &sum) || change_error_ip(skb, quote, from, &sum))
		return -1;
	if (bpf_skb_load_bytes(skb, check_at, &check, sizeof(check)))
		return -1;
	check = changed_sum(check, sum);
	if (bpf_skb_store_bytes(skb, check_at, &check, sizeof(check), 0))
		return -1;
	return bpf_skb_store_bytes(skb, quote->tcp_at, &is, sizeof(is), BPF_F_INVALIDATE_HASH);
}

/* RFC 5927, 4.1; tcp_v4_err(): only of a segment that is under way. A third host that knows the addresses
 * does not know such a number. */
static __always_inline int is_under_way(const struct face *to, __u32 seq)
{
	return to->known & TOLD && to->known & SAID && !is_before(seq, to->una) && is_before(seq, to->nxt);
}

/* Translates an ICMP error about a spliced session's segment; all else passes. */
GLOBAL int on_error(struct __sk_buff *skb)
{
	struct quote *quote = ONLY_ENTRY(quotes);

	if (!quote || read_quote(skb, quote))
		return PASS;
	struct splice_place place;
	if (find_place(&quote->key, &place) || !is_same_address(&quote->error.ip.destination, &quote->key.local))
		return PASS;
	struct spliced *flow = flow_at(&place);
	if (!flow || flow->stage < SPLICE_TAIL || flow->stage == SPLICE_GONE)
		return PASS;
	const struct face *to = &flow->faces[place.bits & 1], *from = &flow->faces[!(place.bits & 1)];
	__u32 seq = bpf_ntohl(quote->tcp.seq);
	/* The kernel validates what our socket has sent. */
	if (!is_by_its_way(skb, to) || (flow->stage == SPLICE_TAIL && is_before(seq, to->own_nxt)))
		return PASS;
	if (!is_under_way(to, seq))
		return drop(ERRORS_DROPPED);
	if (translate_error(skb, quote, from))
		return drop(SPLICE_FAILED);
	count(ERRORS_TRANSLATED);
	return send_on(skb, from);
}

/* Every path takes so much (RFC 791, 3.2), and most segments are not longer. */
#define NEVER_TOO_LONG 576

/* 0: the segment fits; of an aggregated one, each part does. */
static __always_inline __u32 mtu_that_is_exceeded(struct __sk_buff *skb, const struct face *to)
{
	__u32 mtu = 0;

	if (skb->len <= NEVER_TOO_LONG || to->device == LOOPBACK)
		return 0;
	return bpf_check_mtu(skb, to->device, &mtu, 0, BPF_MTU_CHK_SEGS) > 0 ? mtu : 0;
}

/* Call only for a segment that was taken: otherwise anybody could have errors sent to the peer. */
static __always_inline int answer_too_long(struct __sk_buff *skb, const struct segment *segment,
					   const struct flow_key *key, __u32 mtu)
{
	if (become_too_long(skb, segment, key, mtu))
		return drop(SPLICE_FAILED);
	count(TOO_LONG);
	return bpf_redirect(skb->ifindex, 0);
}
