/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Rewrites a datagram for the other end, and sends it on. */
#pragma once
#include "read.h"

/* On packets that leave loopback once more; random, set when the program is loaded. */
const volatile __u32 lap_mark = 0;

/* From loopback to loopback a packet keeps the connection that conntrack has found for it on its way out. A
 * redirection to ingress takes it away, and the route with it. So the packet then leaves once more, by a
 * route of its own, and comes in as any other. */
static __always_inline int is_on_lap(struct __sk_buff *skb)
{
	return skb->ifindex == LOOPBACK && skb->mark == lap_mark;
}

static __always_inline int end_lap(struct __sk_buff *skb)
{
	skb->mark = 0;
	return bpf_redirect_neigh(LOOPBACK, 0, 0, 0);
}

static __always_inline int send_on(struct __sk_buff *skb, __u32 device)
{
	if (device == LOOPBACK && skb->ifindex == LOOPBACK) {
		skb->mark = lap_mark;
		return bpf_redirect(LOOPBACK, BPF_F_INGRESS);
	}
	/* A priority tag (VLAN 0) belongs to the wire that the datagram came by. */
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return DROP;
	skb->mark = 0;
	return bpf_redirect_neigh(device, 0, 0, 0);
}

/* A socket would cut it into fragments. Of an aggregate, each part counts. */
static __always_inline int is_too_long(struct __sk_buff *skb, const struct datagram *to, __u32 mtu)
{
	return headers_len(to) + (skb->gso_size ?: to->payload_len) > mtu;
}

/* As one of our sockets sends it: the sender's hops, class of service and route are not the backend's
 * business. */
static __always_inline int freshen_ipv4(struct __sk_buff *skb, __u32 at, const struct end *end)
{
	struct iphdr was, is;

	if (LOAD_HEADER(skb, at, &was))
		return -1;
	is = was;
	is.tos = 0;
	is.frag_off = end->may_be_cut ? 0 : bpf_htons(0x4000);
	is.ttl = end->hops;
	/* With DF it may be 0 in all of them, and fragments of different datagrams would be put together. */
	if (end->may_be_cut && was.frag_off)
		is.id = bpf_get_prandom_u32();
	is.check = fold((__u64)fold_to_word(changed_words(0, &was, &is, 3)) + (__u16)~was.check);
	return bpf_skb_store_bytes(skb, at, &is, 12, 0);
}

/* Likewise, but without a flow label (net.ipv6.auto_flowlabels gives one to sockets). IPv6 has no sum of its
 * own, so the device's sum of the whole packet has to be told. */
static __always_inline int freshen_ipv6(struct __sk_buff *skb, __u32 at, const struct end *end)
{
	__be32 was[2], is[2];

	if (bpf_skb_load_bytes(skb, at, was, sizeof(was)))
		return -1;
	is[0] = bpf_htonl(0x60000000);
	is[1] = (was[1] & bpf_htonl(0xffffff00)) | bpf_htonl(end->hops);
	bpf_csum_update(skb, fold_to_word(changed_words(0, was, is, 2)));
	return bpf_skb_store_bytes(skb, at, is, sizeof(is), 0);
}

/* bpf_skb_change_tail() makes no packet that is longer (BPF_SKB_MAX_LEN). */
#define LONGEST 16000

/* Puts the flow's header behind the UDP header. `change` becomes the difference in the payload's sum. */
static __noinline int put_header(struct __sk_buff *skb, const struct datagram *datagram,
				 struct offloaded *flow, __u32 *change)
{
	__u32 at = datagram->payload_at, len = datagram->payload_len;

	if (bpf_skb_change_tail(skb, at + len + SPP_LEN, 0) || move_up(skb, at, at + SPP_LEN, len))
		return -1;
	/* Zeros follow it in the table. */
	*change = bpf_csum_diff(0, 0, flow->header, 40, 0);
	return bpf_skb_store_bytes(skb, at, flow->header, SPP_LEN, BPF_F_RECOMPUTE_CSUM);
}

/* Nonzero: it failed, and the packet is corrupt. `from` has become `to` already, but for its headers. */
static __noinline int write_headers(struct __sk_buff *skb, const struct datagram *from,
				    const struct datagram *to, const struct end *end, __u32 change)
{
	__u32 len = to->payload_at + to->payload_len;

	if (!skb->gso_size && skb->len > len && bpf_skb_change_tail(skb, len, 0))
		return -1;
	if (write_datagram(skb, from, to, change))
		return -1;
	return to->ip.version == 4 ? freshen_ipv4(skb, to->ip.at, end) : freshen_ipv6(skb, to->ip.at, end);
}

static __always_inline void count_moved(struct moved *moved, __u32 datagrams, __u32 bytes)
{
	__sync_fetch_and_add(&moved->datagrams, datagrams);
	__sync_fetch_and_add(&moved->bytes, bytes);
}
