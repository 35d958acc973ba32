/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Takes a slot for an answer; udp_slots.h explains slots. */
#pragma once
#include "attach/udp_slots.h"

/* An answer that udp_egress has not seen for this long is lost: longer than the kernel waits for a neighbour
 * (3 s). An answer that the program itself holds back for longer (MSG_MORE) may lose its slot, but only if no
 * other is free. */
#define LOST_S 20
/* How many slots are tried for one answer. */
#define SLOTS_TRIED 64

/* A power of two; set when the program is loaded. */
const volatile __u32 slots = SLOTS;

static __always_inline __u64 state_of(__u32 generation, __u16 second, __u64 count)
{
	return (__u64)generation << 32 | (__u64)second << 16 | count;
}

static __always_inline __u64 ticket_for(__u32 generation, __u16 number)
{
	return (__u64)generation << 16 | number;
}

static __always_inline __u16 this_second(void)
{
	return bpf_ktime_get_coarse_ns() / SECOND_NS;
}

/* The ticket's slot, if it still belongs to the flow; otherwise 0. */
static __always_inline __be16 reuse_slot(__u64 ticket, __u64 version, __u16 second)
{
	__u32 number = ticket & 0xffff;
	struct udp_slot *slot = bpf_map_lookup_elem(&tp_udp_slots, &number);

	if (!ticket || !slot)
		return 0;
	for (int i = 0; i < ATTEMPTS; i++) {
		__u64 state = *(volatile __u64 *)&slot->state;
		if (generation_of(state) != (__u32)(ticket >> 16) || *(volatile __u64 *)&slot->version != version)
			return 0;
		__u64 count = count_of(state) == MANY ? MANY : count_of(state) + 1;
		if (exchange(&slot->state, state, state_of(generation_of(state), second, count)))
			return bpf_htons(number);
	}
	return 0;
}

static __always_inline int is_lost(__u64 state, __u16 second)
{
	return (__u16)(second - second_of(state)) > LOST_S;
}

/* Gives a slot to the caller, who must write it. Returns its new generation, or 0: another flow has it. */
static __always_inline __u32 take_over(struct udp_slot *slot, __u16 second, int may_be_lost)
{
	__u64 state = *(volatile __u64 *)&slot->state;
	__u32 generation = generation_of(state) + 1;

	if (count_of(state) && !(may_be_lost && is_lost(state, second)))
		return 0;
	if (!generation)
		generation = 1; /* a ticket is never 0 */
	return exchange(&slot->state, state, state_of(generation, second, 1)) ? generation : 0;
}

/* Takes a slot for the answer described by `taken`: by the flow's ticket, or a new one with a new ticket. 0:
 * there is no slot. `flow` is the entry, which may have been reused for another client: see `version`. */
static __noinline __be16 take_slot(const struct udp_slot *taken, __u64 ticket, struct udp_flow *flow)
{
	__u32 which = TAKEN_OVER;
	__u16 second = this_second();
	__be16 again = reuse_slot(ticket, taken->version, second);
	__u64 *ring = again ? 0 : bpf_map_lookup_elem(&tp_udp_counts, &which);

	if (!ring)
		return again;
	for (int i = 0; i < SLOTS_TRIED; i++) {
		__u32 number = __sync_fetch_and_add(ring, 1) & (slots - 1);
		struct udp_slot *slot = bpf_map_lookup_elem(&tp_udp_slots, &number);
		if (!slot || !number)
			continue;
		__u32 generation = take_over(slot, second, i >= SLOTS_TRIED / 2);
		if (!generation)
			continue;
		__builtin_memcpy((char *)slot + sizeof(slot->state), (const char *)taken + sizeof(taken->state),
				 sizeof(*slot) - sizeof(slot->state));
		/* Written atomically, after the slot. */
		if (flow)
			__sync_lock_test_and_set(&flow->ticket, ticket_for(generation, number));
		return bpf_htons(number);
	}
	return 0;
}
