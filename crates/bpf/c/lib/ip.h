/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Reads the headers in front of TCP and UDP. */
#pragma once
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#include "lib/eth.h"

#define SOCK_STREAM 1
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_FRAGMENT 44

struct ip {
	struct address source, destination;
	__u32 at, payload_at, end; /* offsets in the packet */
	__u16 len;                 /* as the IP header says it: with IPv4 header, without IPv6 header */
	__u8 version;
	__u8 is_fragment; /* the first one: the others have no ports */
};

/* Copies a header. Nearly always it stands in the packet's first piece, where it can be read without a
 * call. */
#define LOAD_HEADER(skb, at, to)                                                                   \
	({                                                                                         \
		__u32 place = (at);                                                                \
		asm volatile("%0 &= 127" : "+r"(place)); /* for the verifier */                    \
		typeof(to) from = (void *)(long)(skb)->data + place;                               \
		int is_there = place == (at) && (void *)(from + 1) <= (void *)(long)(skb)->data_end; \
		if (is_there)                                                                      \
			*(to) = *from;                                                             \
		is_there ? 0 : bpf_skb_load_bytes(skb, at, to, sizeof(*(to)));                     \
	})

static __always_inline int read_ipv4(struct __sk_buff *skb, __u8 protocol, struct ip *out)
{
	struct iphdr ip;
	if (LOAD_HEADER(skb, out->at, &ip))
		return -1;
	if (ip.version != 4 || ip.ihl < 5)
		return -1; /* the kernel drops it */
	if (ip.protocol != protocol || ip.frag_off & bpf_htons(0x1fff))
		return -1;
	out->is_fragment = !!(ip.frag_off & bpf_htons(0x2000));
	out->version = 4;
	out->len = bpf_ntohs(ip.tot_len);
	out->payload_at = out->at + ip.ihl * 4;
	out->end = out->at + out->len;
	map_ipv4(&out->source, ip.saddr);
	map_ipv4(&out->destination, ip.daddr);
	return 0;
}

struct fragment_header {
	__u8 next, unused;
	__be16 offset;
	__be32 id;
};

static __noinline int read_ipv6(struct __sk_buff *skb, __u8 protocol, struct ip *out)
{
	struct fragment_header fragment;
	struct ipv6hdr ip;
	if (LOAD_HEADER(skb, out->at, &ip))
		return -1;
	if (ip.version != 6)
		return -1; /* the kernel drops it */
	out->version = 6;
	out->payload_at = out->at + sizeof(ip);
	out->len = bpf_ntohs(ip.payload_len);
	out->end = out->payload_at + out->len;
	__builtin_memcpy(&out->source, &ip.saddr, sizeof(out->source));
	__builtin_memcpy(&out->destination, &ip.daddr, sizeof(out->destination));
	/* No other extension headers: real senders put none before TCP or UDP, and they are refused
	 * (ipv6_exthdr.h). */
	if (ip.nexthdr == protocol)
		return 0;
	if (ip.nexthdr != IPPROTO_FRAGMENT || bpf_skb_load_bytes(skb, out->payload_at, &fragment, sizeof(fragment)))
		return -1;
	if (fragment.next != protocol || fragment.offset & bpf_htons(0xfff8))
		return -1;
	out->payload_at += sizeof(fragment);
	out->is_fragment = 1;
	return 0;
}

/* Nonzero: not of this protocol, without its header, or truncated. The kernel drops a truncated packet. */
static __always_inline int read_ip(struct __sk_buff *skb, __u8 protocol, struct ip *ip)
{
	ip->at = link_header_len;
	ip->is_fragment = 0;
	if (is_of_vlan(skb))
		return -1;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (read_ipv4(skb, protocol, ip))
			return -1;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (read_ipv6(skb, protocol, ip))
			return -1;
	} else {
		return -1;
	}
	/* Ethernet pads short frames, so the IP header has the length. For aggregated packets (GRO) only the buffer
	 * has it. */
	if (skb->gso_size || skb->gso_segs > 1)
		ip->end = skb->len;
	return ip->end > skb->len ? -1 : 0;
}

/* Returns what follows a plain IP header, with its offset and protocol. Returns NULL for options, extension
 * headers, fragments and headers that are cut off: the caller then reads the packet as a whole. */
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

/* The IP header's checksum stays valid: source and destination are at most swapped. */
static __always_inline int write_addresses(struct __sk_buff *skb, const struct ip *ip,
					   const struct address *source, const struct address *destination)
{
	if (ip->version == 6) {
		bpf_skb_store_bytes(skb, ip->at + offsetof(struct ipv6hdr, saddr), source, 16, 0);
		return bpf_skb_store_bytes(skb, ip->at + offsetof(struct ipv6hdr, daddr), destination, 16, 0);
	}
	bpf_skb_store_bytes(skb, ip->at + offsetof(struct iphdr, saddr), &source->word[3], 4, 0);
	return bpf_skb_store_bytes(skb, ip->at + offsetof(struct iphdr, daddr), &destination->word[3], 4, 0);
}
