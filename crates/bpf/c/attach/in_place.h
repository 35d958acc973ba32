/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Reads a packet's headers in place, without a copy. Nearly all packets need no more. */
#pragma once
#include "lib/ip.h"

/* One bit for each port that is certainly not attached, set when the program is loaded: most packets of most hosts need no table.
 * For all other ports, tp_ports decides. */
const volatile __u64 other_ports[65536 / 64] = {};

static __always_inline int is_other_port(__be16 port)
{
	__u32 number = bpf_ntohs(port);

	return other_ports[number / 64] >> (number % 64) & 1;
}

/* Returns what follows a plain IP header, with its offset and protocol. Returns NULL for options, extension headers, fragments and headers that
 * are cut off: the caller then reads the packet as a whole. */
static __always_inline void *behind_ip(struct __sk_buff *skb, __u32 *at, __u8 *protocol)
{
	void *start = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 link = link_header_len;

	asm volatile("%0 &= 63" : "+r"(link)); /* for the verifier */
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = start + link;
		if ((void *)(ip + 1) > end || *(__u8 *)ip != 0x45 || ip->frag_off & bpf_htons(0x3fff))
			return 0;
		*protocol = ip->protocol;
		*at = link + sizeof(*ip);
		return ip + 1;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = start + link;
		if ((void *)(ip + 1) > end || *(__u8 *)ip >> 4 != 6)
			return 0;
		if (ip->nexthdr != IPPROTO_TCP && ip->nexthdr != IPPROTO_UDP)
			return 0;
		*protocol = ip->nexthdr;
		*at = link + sizeof(*ip);
		return ip + 1;
	}
	return 0;
}

/* Certainly not TCP for an attached port. */
static __always_inline int is_elsewhere(struct __sk_buff *skb)
{
	__u8 protocol;
	__u32 at;
	__be16 *ports = behind_ip(skb, &at, &protocol);

	if (!ports)
		return 0;
	if (protocol != IPPROTO_TCP)
		return 1;
	return (void *)(ports + 2) <= (void *)(long)skb->data_end && is_other_port(ports[1]);
}
