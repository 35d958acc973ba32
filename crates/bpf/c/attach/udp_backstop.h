/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The last check, at the backend's socket: a datagram from a sender that must send a header was validated by
 * udp_ingress, or it is dropped. Paths around udp_ingress are a port that is redirected (DNAT) to the
 * backend's, a device that appeared after `truepeer attach`, frames with two priority tags, and others.
 *
 * The mark of a validated datagram is in skb->priority: a secret number, generated with the tables. Nothing
 * reads the priority of an incoming packet, and no packet can bring one: a device starts with 0, veth resets
 * it, and a socket needs CAP_NET_ADMIN for more than 6.
 *
 * The includer defines is_of_our_netns(skb, sk): the hook is in a cgroup, and other network namespaces use
 * the same addresses. */
#pragma once
#include "lib/ip.h"
#include "attach/refusals.h"
#include "attach/udp_maps.h"

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

/* For a UDP socket. 1 accepts the datagram, 0 drops it. */
static __always_inline int udp_backstop(struct __sk_buff *skb, struct bpf_sock *sk)
{
	__be16 port = bpf_htons(sk->src_port);
	struct backend *backend = bpf_map_lookup_elem(&tp_backends, &port);
	struct address source;

	if (!backend)
		return 1;
	struct settings *settings = settings_here();
	if (!settings)
		return 1;
	if (skb->priority == settings->validated) {
		skb->priority = 0; /* a program may ask for it (SO_RCVPRIORITY) */
		return 1;
	}
	if (load_source(skb, &source) || sender_rule(&source, backend->group) != RULE_REQUIRE ||
	    !is_of_our_netns(skb, sk))
		return 1;
	struct flow_key key = { .remote = source, .local_port = port };
	count_at(backend->counters, REFUSED_UNJUDGED);
	tell(&key, IPPROTO_UDP, REFUSED_UNJUDGED, 0);
	return 0;
}
