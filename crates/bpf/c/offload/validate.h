/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Which segments may change what is known of a flow: those that our socket would take if it still stood here.
 * What is not taken is translated all the same, and the other peer validates it by its own numbers; only an
 * acknowledgement that is too old is dropped. */
#pragma once
#include "lib/csum.h"
#include "offload/maps.h"

static __always_inline int is_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline __u32 newest_of(__u32 a, __u32 b)
{
	return is_before(a, b) ? b : a;
}

static __always_inline void raise(__u32 *newest, __u32 number)
{
	if (is_before(*newest, number))
		*newest = number;
}

/* For limits. Two CPUs may raise one at once, and a limit that falls back would refuse good segments. If all
 * tries fail, the next segment raises it. Other numbers need no exchange. While most are behind, the
 * judgement is only milder. While max_window is behind, an acknowledgement may count as too old: its sender
 * repeats the segment. */
#define RAISE_TRIES 3

static __always_inline void raise_limit(__u32 *limit, __u32 number)
{
	__u32 was = *(volatile __u32 *)limit;

	for (int tries = 0; tries < RAISE_TRIES && is_before(was, number); tries++) {
		__u32 found = __sync_val_compare_and_swap(limit, was, number);

		if (found == was)
			return;
		was = found;
	}
}

/* Likewise, of `end`. Each byte is counted once, in whatever order segments come, and whether the socket or
 * the program takes them: only the highest number counts. */
static __always_inline void raise_end(struct face *face, __u32 number)
{
	__u64 was = *(volatile __u64 *)&face->end;

	for (int tries = 0; tries < RAISE_TRIES && is_before(was, number); tries++) {
		__u64 found = __sync_val_compare_and_swap(&face->end, was, was + (number - (__u32)was));

		if (found == was)
			return;
		was = found;
	}
}

static __always_inline int is_bare(const struct segment *segment)
{
	return !segment->payload_len && !(segment->flags & (SYN | FIN | RST));
}

/* A peer that has sent more than its window numbers its bare ACKs by the window's end (tcp_acceptable_seq()).
 * A window is rounded down to its scale, so it may end up to 2^14 bytes before an older one did: such an ACK
 * looks old, and its acknowledgement is the newest. The number before the expected one is that of a question
 * (keepalive, window probe): its receiver answers because it does not take it. */
#define LATE (1 << 14)

static __always_inline int is_late_ack(const struct segment *segment, const struct face *face)
{
	return is_bare(segment) && face->known & SAID && is_before(segment->seq, face->ack - 1) &&
	       !is_before(segment->seq, face->ack - LATE) && !is_before(segment->ack, face->una);
}

/* tcp_sequence() in net/ipv4/tcp_input.c. */
static __always_inline int is_in_window(const struct segment *segment, const struct face *face)
{
	if (is_late_ack(segment, face))
		return 1;
	return !is_before(end_of(segment), face->ack) && !is_before(face->edge, segment->seq);
}

/* RFC 5961, 5.2; tcp_ack(). Before the peer has said anything, an acknowledgement must be twice the longest
 * unscaled window old at most. */
static __always_inline int is_ack_good(const struct segment *segment, const struct face *face)
{
	__u32 oldest = face->known & SAID ? face->una - face->max_window :
					    face->nxt - (131070U << (face->peer_scale & 15));

	if (!(segment->flags & ACK))
		return 0;
	return !is_before(face->nxt, segment->ack) && !is_before(segment->ack, oldest);
}

/* Such a segment is dropped with its data, as our socket would drop it (RFC 5961, 5.2); its sender repeats it
 * with its newest acknowledgement. The other peer's limit may be older, because our socket offered more
 * before the session left. Then the other peer would take what is not learnt here, and from then on
 * acknowledge bytes that our socket has not seen (in TAIL), or end a session that never ends here. No good
 * session stops by this: `una` never passes `nxt` (is_ack_good()), and a peer has acknowledged all of that
 * but one window. */
static __always_inline int is_ack_too_old(const struct segment *segment, const struct face *face)
{
	return segment->flags & ACK && face->known & SAID && is_before(segment->ack, face->una - face->max_window);
}

/* RST and SYN are validated apart. */
static __always_inline int is_taken(const struct segment *segment, const struct face *face)
{
	return face->known & TOLD && is_in_window(segment, face) && is_ack_good(segment, face);
}

/* RFC 5961, 3.2: the exact number, or the one behind the peer's last byte, because our newest acknowledgement
 * may still be under way. A reset of any other number may be a guess: the other peer asks about it. */
static __always_inline int is_reset_good(const struct segment *segment, const struct face *face)
{
	if (!(face->known & TOLD))
		return 0;
	return segment->seq == face->ack || (face->known & SAID && segment->seq == (__u32)face->end);
}

/* Learns what a segment that was taken says. */
static __always_inline void learn_from(struct face *face, const struct segment *segment, __u32 window)
{
	__u32 end = end_of(segment), edge = segment->ack + window;

	if (!(face->known & SAID)) {
		face->una = segment->ack;
		face->end = end;
		face->max_window = window;
		face->said_edge = edge;
		note(face, SAID);
		return;
	}
	raise(&face->una, segment->ack);
	raise_limit(&face->said_edge, edge);
	raise_end(face, end);
	if (face->max_window < window)
		face->max_window = window;
}

/* How far the other peer takes what the peer of this face sends, in numbers of this face. */
static __always_inline __u32 far_edge(const struct face *face, const struct face *other)
{
	return other->said_edge - face->shift;
}

/* The window that ends at this edge. */
static __always_inline __u32 reach(__u32 ack, __u32 edge)
{
	return is_before(ack, edge) ? edge - ack : 0;
}

/* What the peer of this face is told, by whomever. */
static __always_inline void note_told(struct face *face, __u32 end, __u32 ack, __u32 edge)
{
	if (!(face->known & TOLD)) {
		face->nxt = end;
		face->ack = ack;
		face->edge = edge;
		note(face, TOLD);
		return;
	}
	raise_limit(&face->nxt, end);
	raise(&face->ack, ack);
	raise_limit(&face->edge, edge);
}
