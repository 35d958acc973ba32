/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Slots: how an answer tells udp_egress which flow it belongs to.
 *
 * One address of a sender carries many clients. An answer that udp_egress must change (a port to map back, an
 * SPP header to put back) can't be identified by its addresses alone. So udp_send writes the number of a slot
 * in place of the sender's port, and the slot holds the rest. A slot is used only on the way from udp_send to
 * udp_egress, usually microseconds, and is free again afterwards. So the slots (65,535 at most) limit the
 * answers on their way at one moment, not the clients.
 *
 * A slot's state is one word, changed only by compare-and-exchange:
 *
 *   generation (32 bits) | second of the last answer (16) | answers on their way (16)
 *
 * - A flow keeps a ticket: generation and number of the slot that it used last. While the generation is
 * unchanged, no other flow has used the slot, and the flow's next answer uses it again. The slot names the
 * version of its flow. A flow that has changed uses another slot, and so does one that finds a ticket of the
 * entry's previous user.
 * - Otherwise the flow takes over a slot without answers on their way, and increments its generation. Slots
 * are tried in a ring, so the one that was taken over longest ago comes first.
 * - udp_egress decrements the count when it sees an answer. An answer that is dropped before (by a firewall,
 * or without a neighbour) is never decremented. Its slot stays with the flow; other flows take it over only
 * after LOST_S seconds.
 *
 * The count, not time, prevents a slot from being taken over while an answer waits (for its neighbour to be
 * resolved, or in a corked socket). */
#pragma once
#include "attach/udp_maps.h"

/* Number 0 is unused: it is no valid port. max_entries is set when the table is created. */
#define SLOTS 65536

TABLE(tp_udp_slots, ARRAY, SLOTS, __u32, struct udp_slot, 0);

enum count { TAKEN_OVER /* slots: where the ring is */, VERSIONS /* of flows */, UDP_COUNTS };

TABLE(tp_udp_counts, ARRAY, UDP_COUNTS, __u32, __u64, 0);

/* A count that has reached this stays: too many answers were lost for it to be right. */
#define MANY 0xffffULL
/* How often a change is retried while others change the same slot. */
#define ATTEMPTS 8

static __always_inline __u32 generation_of(__u64 state)
{
	return state >> 32;
}

static __always_inline __u16 second_of(__u64 state)
{
	return state >> 16;
}

static __always_inline __u64 count_of(__u64 state)
{
	return state & MANY;
}

/* Nonzero: it was done. */
static __always_inline int exchange(__u64 *state, __u64 old, __u64 new)
{
	return __sync_val_compare_and_swap(state, old, new) == old;
}

/* The contents of a slot. */
static __always_inline void describe(struct udp_slot *slot, const struct udp_key *key,
				     const struct udp_flow *flow)
{
	slot->state = 0;
	slot->version = flow->version;
	slot->sender = flow->sender;
	slot->client = key->client;
	slot->proxy = flow->proxy;
	slot->backend_port = key->backend_port;
	slot->sender_port = flow->sender_port;
	slot->port = flow->port;
	slot->said_client_port = flow->said_client_port;
	slot->proxy_port = flow->proxy_port;
	slot->counters = flow->counters;
	slot->is_spp = flow->is_spp;
	slot->unused[0] = slot->unused[1] = slot->unused[2] = 0;
}

/* The slot of a packet, if it is an answer on its way. */
static __always_inline struct udp_slot *find_slot(const struct address *sender, __be16 number,
						  __be16 backend_port)
{
	__u32 at = bpf_ntohs(number);
	struct udp_slot *slot = bpf_map_lookup_elem(&tp_udp_slots, &at);

	if (!slot || !count_of(slot->state) || slot->backend_port != backend_port ||
	    !is_same_address(&slot->sender, sender))
		return 0;
	return slot;
}

/* The answer is no longer on its way. */
static __always_inline void release_slot(struct udp_slot *slot)
{
	for (int i = 0; i < ATTEMPTS; i++) {
		__u64 state = *(volatile __u64 *)&slot->state;
		if (count_of(state) == 0 || count_of(state) == MANY)
			return;
		if (exchange(&slot->state, state, state - 1))
			return;
	}
}
