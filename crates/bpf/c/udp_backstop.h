/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The last look, where a datagram has reached the backend's socket: whatever way it came by, one from a sender that must send a header was
 * judged by udp_ingress, or it goes no further. Past udp_ingress lead a port that is redirected (DNAT) to the backend's, a device that came
 * after `truepeer attach`, frames with two priority tags, and others.
 *
 * That it was judged is written in skb->priority: a number that nobody else knows, made when the tables are. Nothing reads the priority of
 * a packet on its way in, and no packet can bring one: a device begins with 0, veth sets it back, and a socket may have more than 6 only
 * with CAP_NET_ADMIN.
 *
 * Whoever includes this defines is_of_our_netns(skb, sk): the hook stands in a cgroup, other network namespaces use the same addresses. */
#pragma once
#include "ip.h"
#include "udp_maps.h"

/* The socket's filter sees a packet from its IP header on. Nonzero: it failed. */
static __always_inline int load_source(struct __sk_buff *skb, struct address *source)
{
	__be32 ipv4;

	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return bpf_skb_load_bytes(skb, offsetof(struct ipv6hdr, saddr), source, sizeof(*source));
	if (bpf_skb_load_bytes(skb, offsetof(struct iphdr, saddr), &ipv4, sizeof(ipv4)))
		return -1;
	map_ipv4(source, ipv4);
	return 0;
}

/* For a socket of UDP. 1 lets the datagram in, 0 drops it. */
static __always_inline int udp_backstop(struct __sk_buff *skb, struct bpf_sock *sk)
{
	__be16 port = bpf_htons(sk->src_port);
	struct backend *backend = bpf_map_lookup_elem(&tp_backends, &port);
	__u32 only = 0;
	struct address source;

	if (!backend)
		return 1;
	struct settings *settings = bpf_map_lookup_elem(&tp_settings, &only);
	if (!settings)
		return 1;
	if (skb->priority == settings->judged) {
		skb->priority = 0; /* a program may ask for it (SO_RCVPRIORITY) */
		return 1;
	}
	if (load_source(skb, &source) || sender_rule(&source) != RULE_REQUIRE || !is_of_our_netns(skb, sk))
		return 1;
	count_at(backend->slot, REFUSED_UNJUDGED);
	return 0;
}
