/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Takes a seat for an answer; udp_seats.h explains seats. */
#pragma once
#include "udp_seats.h"

/* An answer that udp_egress has not seen for this long is lost: longer than the kernel waits for a neighbour
 * (3 s). An answer that the program itself holds back for longer (MSG_MORE) may lose its seat, but only if no
 * other is free. */
#define LOST_S 20
/* How many seats are tried for one answer. */
#define SEATS_TRIED 64

/* A power of two; set when the program is loaded. */
const volatile __u32 seats = SEATS;

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

/* The ticket's seat, if it still belongs to the flow; otherwise 0. */
static __always_inline __be16 sit_again(__u64 ticket, __u64 version, __u16 second)
{
	__u32 number = ticket & 0xffff;
	struct udp_seat *seat = bpf_map_lookup_elem(&tp_udp_seats, &number);

	if (!ticket || !seat)
		return 0;
	for (int i = 0; i < ATTEMPTS; i++) {
		__u64 state = *(volatile __u64 *)&seat->state;
		if (generation_of(state) != (__u32)(ticket >> 16) || *(volatile __u64 *)&seat->version != version)
			return 0;
		__u64 count = count_of(state) == MANY ? MANY : count_of(state) + 1;
		if (exchange(&seat->state, state, state_of(generation_of(state), second, count)))
			return bpf_htons(number);
	}
	return 0;
}

static __always_inline int is_lost(__u64 state, __u16 second)
{
	return (__u16)(second - second_of(state)) > LOST_S;
}

/* Gives a seat to the caller, who must write it. Returns its new generation; 0: it belongs to another flow. */
static __always_inline __u32 take_over(struct udp_seat *seat, __u16 second, int may_be_lost)
{
	__u64 state = *(volatile __u64 *)&seat->state;
	__u32 generation = generation_of(state) + 1;

	if (count_of(state) && !(may_be_lost && is_lost(state, second)))
		return 0;
	if (!generation)
		generation = 1; /* a ticket is never 0 */
	return exchange(&seat->state, state, state_of(generation, second, 1)) ? generation : 0;
}

/* Takes a seat for the answer described by `taken`: by the flow's ticket, or a new one with a new ticket. 0:
 * there is no seat. `flow` is the entry, which may have been reused for another client: see `version`. */
static __noinline __be16 take_seat(const struct udp_seat *taken, __u64 ticket, struct udp_flow *flow)
{
	__u32 which = TAKEN_OVER;
	__u16 second = this_second();
	__be16 again = sit_again(ticket, taken->version, second);
	__u64 *ring = again ? 0 : bpf_map_lookup_elem(&tp_udp_counts, &which);

	if (!ring)
		return again;
	for (int i = 0; i < SEATS_TRIED; i++) {
		__u32 number = __sync_fetch_and_add(ring, 1) & (seats - 1);
		struct udp_seat *seat = bpf_map_lookup_elem(&tp_udp_seats, &number);
		if (!seat || !number)
			continue;
		__u32 generation = take_over(seat, second, i >= SEATS_TRIED / 2);
		if (!generation)
			continue;
		__builtin_memcpy((char *)seat + sizeof(seat->state), (const char *)taken + sizeof(taken->state),
				 sizeof(*seat) - sizeof(seat->state));
		/* Written atomically, after the seat. */
		if (flow)
			__sync_lock_test_and_set(&flow->ticket, ticket_for(generation, number));
		return bpf_htons(number);
	}
	return 0;
}
