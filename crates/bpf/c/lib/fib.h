/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Whether a packet is addressed to this host. */
#pragma once
#include "lib/ip.h"

static __always_inline void set_ends(struct bpf_fib_lookup *route, __u32 version, const struct address *from,
				     const struct address *to)
{
	if (version == 4) {
		route->family = AF_INET;
		route->ipv4_src = from->word[3];
		route->ipv4_dst = to->word[3];
	} else {
		route->family = AF_INET6;
		__builtin_memcpy(route->ipv6_src, from, sizeof(route->ipv6_src));
		__builtin_memcpy(route->ipv6_dst, to, sizeof(route->ipv6_dst));
	}
}

/* A listener on a wildcard address would also match packets that are only forwarded, so the route decides. */
GLOBAL int is_for_this_host(struct __sk_buff *skb, const struct ip *ip, __u32 protocol)
{
	if (!ip)
		return 0;
	struct bpf_fib_lookup route = { .ifindex = skb->ingress_ifindex, .l4_protocol = protocol };

	set_ends(&route, ip->version, &ip->source, &ip->destination);
	long fate = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	/* An error (below 0) says nothing about the route: then the listener decides. */
	return fate < 0 || fate == BPF_FIB_LKUP_RET_NOT_FWDED || fate == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

static __always_inline __u32 tuple_of(const struct ip *ip, __be16 source_port, __be16 destination_port,
				      struct bpf_sock_tuple *tuple)
{
	if (ip->version == 4) {
		tuple->ipv4.saddr = ip->source.word[3];
		tuple->ipv4.daddr = ip->destination.word[3];
		tuple->ipv4.sport = source_port;
		tuple->ipv4.dport = destination_port;
		return sizeof(tuple->ipv4);
	}
	__builtin_memcpy(tuple->ipv6.saddr, &ip->source, sizeof(tuple->ipv6.saddr));
	__builtin_memcpy(tuple->ipv6.daddr, &ip->destination, sizeof(tuple->ipv6.daddr));
	tuple->ipv6.sport = source_port;
	tuple->ipv6.dport = destination_port;
	return sizeof(tuple->ipv6);
}
