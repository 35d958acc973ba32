/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* TCP and UDP that read_ip doesn't recognise: in fragments, or behind IPv6 extension headers. The kernel
 * reassembles them after these programs, so a sender that must send a header may not use them. */
#pragma once
#include "lib/ip.h"

#define IPPROTO_HOPOPTS 0
#define IPPROTO_ROUTING 43
#define IPPROTO_AH 51
#define IPPROTO_DSTOPTS 60

#define EXTENSIONS 16 /* each kind but one comes once (RFC 8200, 4.1) */

enum finding { NOTHING_HIDDEN, IS_HIDDEN, TOO_LONG_TO_SAY };

struct hidden {
	struct ip ip;
	__be16 source_port, destination_port;
};

static __always_inline enum finding find_behind_extensions(struct __sk_buff *skb, __u8 protocol,
							   struct ip *out)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, out->at, &ip, sizeof(ip)))
		return NOTHING_HIDDEN;
	out->version = 6;
	out->payload_at = out->at + sizeof(ip);
	__builtin_memcpy(&out->source, &ip.saddr, sizeof(out->source));
	__builtin_memcpy(&out->destination, &ip.daddr, sizeof(out->destination));
	__u8 next = ip.nexthdr;
	for (__u32 i = 0; i < EXTENSIONS; i++) {
		struct fragment_header extension; /* all begin alike */
		if (next == protocol)
			return i > 0 ? IS_HIDDEN : NOTHING_HIDDEN;
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_FRAGMENT && next != IPPROTO_AH &&
		    next != IPPROTO_DSTOPTS)
			return NOTHING_HIDDEN;
		if (bpf_skb_load_bytes(skb, out->payload_at, &extension, sizeof(extension)))
			return NOTHING_HIDDEN;
		if (next == IPPROTO_FRAGMENT && extension.offset & bpf_htons(0xfff8))
			return NOTHING_HIDDEN;
		if (next == IPPROTO_FRAGMENT)
			out->payload_at += sizeof(extension);
		else if (next == IPPROTO_AH)
			out->payload_at += (extension.unused + 2) * 4;
		else
			out->payload_at += (extension.unused + 1) * 8;
		next = extension.next;
	}
	return TOO_LONG_TO_SAY;
}

/* Whether the packet hides something of this protocol. Its addresses and ports are then in `hidden`. Of a
 * datagram in fragments the first one is enough: without it the others are incomplete, and the kernel accepts
 * none without ports. */
GLOBAL enum finding find_hidden(struct __sk_buff *skb, __u32 protocol, struct hidden *hidden)
{
	__be16 ports[2];

	if (!hidden || is_of_vlan(skb))
		return NOTHING_HIDDEN;
	struct ip *ip = &hidden->ip;
	ip->at = link_header_len;
	enum finding found = NOTHING_HIDDEN;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		found = !read_ipv4(skb, protocol, ip) && ip->is_fragment ? IS_HIDDEN : NOTHING_HIDDEN;
	else if (skb->protocol == bpf_htons(ETH_P_IPV6))
		found = find_behind_extensions(skb, protocol, ip);
	if (found != IS_HIDDEN)
		return found;
	if (bpf_skb_load_bytes(skb, ip->payload_at, ports, sizeof(ports)))
		return NOTHING_HIDDEN;
	hidden->source_port = ports[0];
	hidden->destination_port = ports[1];
	return IS_HIDDEN;
}
