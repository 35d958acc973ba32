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
	struct ip error;     /* whose payload is the ICMP header */
	struct ip quoted;    /* the header of the quoted segment */
	struct flow_key key; /* the quoted segment went to `remote` of this key */
	struct quoted_tcp tcp;
};

/* The verifier allows little stack. */
SCRATCH(quotes, struct quote);

/* Nonzero: it is no error about a TCP segment. */
static __always_inline int read_quote(struct __sk_buff *skb, struct quote *quote)
{
	struct ip *error = &quote->error, *quoted = &quote->quoted;
	struct icmp_start icmp;

	if (read_ip(skb, skb->protocol == bpf_htons(ETH_P_IP) ? IPPROTO_ICMP : IPPROTO_ICMPV6, error) ||
	    error->is_fragment)
		return -1;
	if (LOAD_HEADER(skb, error->payload_at, &icmp) || !is_error(error->version, icmp.type))
		return -1;
	quoted->at = error->payload_at + sizeof(icmp);
	if (error->version == 4 ? read_ipv4(skb, IPPROTO_TCP, quoted) : read_ipv6(skb, IPPROTO_TCP, quoted))
		return -1;
	if (bpf_skb_load_bytes(skb, quoted->payload_at, &quote->tcp, sizeof(quote->tcp)))
		return -1;
	quote->key = (struct flow_key){
		.remote = quoted->destination,
		.local = quoted->source,
		.remote_port = quote->tcp.destination,
		.local_port = quote->tcp.source,
	};
	return 0;
}

/* Writes other addresses into the error's header, or into the quoted one. `sum` becomes the difference in
 * ICMP's sum. It covers IPv6 addresses; an IPv4 header balances them by a sum of its own. */
static __always_inline int change_ip(struct __sk_buff *skb, const struct ip *ip, const struct address *source,
				     const struct address *destination, __u64 *sum)
{
	__u32 moved = difference(&ip->source, source, sizeof(*source), 0);

	moved = difference(&ip->destination, destination, sizeof(*destination), moved);
	if (ip->version == 6)
		*sum += moved;
	else if (bpf_l3_csum_replace(skb, ip->at + offsetof(struct iphdr, check), 0, moved, 0))
		return -1;
	return write_addresses(skb, ip, source, destination);
}

/* The sum is changed by the difference, so a damaged error stays damaged. Errors of this host have a whole
 * sum, too: the kernel computes ICMP's itself. The error's source becomes the address that the peer's
 * segments go to: the peer's firewall expects that, and a router's address might be link-local. */
static __always_inline int translate_error(struct __sk_buff *skb, const struct quote *quote,
					   const struct face *from)
{
	struct quoted_tcp is = {
		.source = from->key.remote_port,
		.destination = from->key.local_port,
		.seq = bpf_htonl(bpf_ntohl(quote->tcp.seq) - from->shift),
	};
	const struct address *own = &from->key.local, *peer = &from->key.remote;
	__u32 check_at = quote->error.payload_at + offsetof(struct icmp_start, check);
	__u64 sum = (__u32)difference(&quote->tcp, &is, sizeof(is), 0);
	__be16 check;

	if (change_ip(skb, &quote->quoted, peer, own, &sum) || change_ip(skb, &quote->error, own, peer, &sum))
		return -1;
	if (bpf_skb_load_bytes(skb, check_at, &check, sizeof(check)))
		return -1;
	check = fold((__u64)(__u16)~check + sum);
	if (bpf_skb_store_bytes(skb, check_at, &check, sizeof(check), 0))
		return -1;
	return bpf_skb_store_bytes(skb, quote->quoted.payload_at, &is, sizeof(is), BPF_F_INVALIDATE_HASH);
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
	if (find_place(&quote->key, &place) || !is_same_address(&quote->error.destination, &quote->key.local))
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
