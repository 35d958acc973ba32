/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The state of UDP in one network namespace. LRU throughout: a forgotten flow is made again by its next datagram.
 *
 *   tp_gates     what senders send to
 *   tp_backends  what backends are bound to: answers come from there
 *   tp_udp_flows client, as the backend names it -> sender
 *   tp_udp_tags  an answer on its way to udp_egress -> the flow
 */
#pragma once
#include "maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __be16);
	__type(value, struct gate);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_gates SEC(".maps");

enum backend_kind { PLAIN_ANSWERS = 1, TAGGED_ANSWERS = 2 /* some, by struct udp_tag */ };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__type(key, __be16);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct udp_key);
	__type(value, struct udp_flow);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_udp_flows SEC(".maps");

/* One address of a sender carries many clients: its address and port would not say whose answer it is. So where udp_egress
 * has something to do with an answer (an SPP header to put back, a port to map back), udp_send writes the flow's tag in
 * the place of the sender's port. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct udp_tag);
	__type(value, struct udp_key);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_udp_tags SEC(".maps");

static __always_inline int is_same_address(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

/* 127.0.0.0/8 or ::1. */
static __always_inline int is_loopback(const struct address *address)
{
	if (address->word[0] || address->word[1])
		return 0;
	if (address->word[2] == MAPPED)
		return (bpf_ntohl(address->word[3]) >> 24) == 127;
	return !address->word[2] && address->word[3] == bpf_htonl(1);
}

#define SECOND_NS 1000000000ULL

/* Its client has not been heard of by way of its sender for so long that it may have come by itself by now. A flow's newest datagram
 * is noted to a second. */
static __always_inline int is_silent(const struct udp_flow *flow)
{
	__u32 only = 0;
	struct settings *settings = bpf_map_lookup_elem(&tp_settings, &only);

	if (!settings || !settings->udp_silence_s)
		return 0;
	__s64 silence_ns = bpf_ktime_get_coarse_ns() - flow->seen_ns;
	return silence_ns > (__s64)((settings->udp_silence_s + 1ULL) * SECOND_NS);
}

/* The flow that an answer from `key->local` belongs to; that may be 0, and on the loopback it isn't where the client's
 * datagrams went to. */
static __always_inline struct udp_flow *find_udp_flow(struct udp_key *key)
{
	struct udp_flow *flow = bpf_map_lookup_elem(&tp_udp_flows, key);
	if (flow && !is_silent(flow))
		return flow;
	key->local = (struct address){};
	flow = bpf_map_lookup_elem(&tp_udp_flows, key);
	return flow && !is_silent(flow) ? flow : 0;
}
