/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Whether a backend on this host receives a datagram. */
#pragma once
#include "attach/layout.h"
#include "lib/fib.h"

/* Sent to a multicast group: no route marks the groups that this host has joined as local. */
static __always_inline int is_for_many(const struct ip *ip)
{
	if (ip->version == 4)
		return bpf_ntohl(ip->destination.word[3]) >> 28 == 14; /* 224.0.0.0/4 */
	return bpf_ntohl(ip->destination.word[0]) >> 24 == 0xff; /* ff00::/8 */
}

/* What to do with the backend that was found. */
enum giving {
	ONLY_LOOK,
	OFFER, /* spare the kernel to look for it once more; of a group of sockets, Linux before 6.6 takes
		* no offer */
	GIVE,  /* whatever address it is bound to */
};

/* Whether a backend is bound for it. */
GLOBAL int find_backend(struct __sk_buff *skb, const struct ip *ip, __be16 client_port, __be16 backend_port,
			enum giving giving)
{
	struct bpf_sock_tuple tuple = {};

	if (!ip)
		return 0;
	__u32 len = tuple_of(ip, client_port, backend_port, &tuple);
	struct bpf_sock *sk = len == sizeof(tuple.ipv4)
		? bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0)
		: bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	long failed = giving == ONLY_LOOK ? 0 : bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return giving != GIVE || !failed;
}

enum where { NO_BACKEND, IS_BOUND, IS_ON_LOOPBACK };

/* Finds the backend of a datagram whose source it sees as `key` says. A backend on the loopback gets
 * datagrams for other addresses of this host unchanged: the kernel would not route them there. */
static __always_inline enum where find_where(struct __sk_buff *skb, const struct ip *ip,
					     const struct udp_key *key, int is_here, struct ip *on_loopback)
{
	*on_loopback = *ip;
	on_loopback->source = key->client;
	/* A datagram that may have to be forwarded must not be assigned to a socket. */
	if (find_backend(skb, on_loopback, key->client_port, key->backend_port, is_here ? OFFER : ONLY_LOOK))
		return IS_BOUND;
	if (ip->version == 4)
		map_ipv4(&on_loopback->destination, bpf_htonl(0x7f000001));
	else
		on_loopback->destination = (struct address){ .word = { 0, 0, 0, bpf_htonl(1) } };
	return find_backend(skb, on_loopback, key->client_port, key->backend_port, ONLY_LOOK) ? IS_ON_LOOPBACK
											      : NO_BACKEND;
}
