/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Translates segments from one connection of a flow to the other. docs/internals/splice.md tells why all
 * numbers differ by constants. */
#pragma once
#include "offload/rewrite.h"
#include "offload/validate.h"
#include "offload/usual.h"

/* Milliseconds by which the other connection's clock is continued ahead: a segment that was under way for
 * less time does not look old (PAWS). TSecr is shifted back by the same amount, so no end measures a wrong
 * round trip. */
#define CLOCK_LEAD 128

static __always_inline __u32 window_of(const struct segment *segment, const struct face *face)
{
	return (__u32)bpf_ntohs(segment->window) << (face->peer_scale & 15);
}

/* A window as it is written to the peer of this face. */
static __always_inline __be16 scaled(__u32 window, const struct face *face)
{
	window >>= face->own_scale & 15;
	return bpf_htons(window < 65535 ? window : 65535);
}

/* How far the peer's clock is behind that of our other socket, which the other peer knows. Each clock is
 * learnt once; the program that learns the second one, splice_in or splice_out, computes the difference. The
 * peer need not speak again. */
static __always_inline void compare_clocks(struct face *face, const struct face *other)
{
	if (face->known & TS_SHIFT || !(face->known & SAID_CLOCK) || !(other->known & CLOCK))
		return;
	face->ts_shift = other->clock + CLOCK_LEAD - face->said_clock;
	note(face, TS_SHIFT);
}

/* Only the first segment that was taken counts. */
static __always_inline void learn_said_clock(struct face *face, __u32 tsval)
{
	if (face->known & SAID_CLOCK)
		return;
	face->said_clock = tsval - milliseconds();
	note(face, SAID_CLOCK);
}

static __always_inline void shift_timestamps(struct timestamps *timestamps, const struct segment *segment,
					     const struct face *from, struct face *to, int is_good)
{
	timestamps->value += from->ts_shift;
	/* The peer's clock may run slower than ours. The other peer would discard a timestamp behind the
	 * newest that it has got (PAWS). */
	if (is_good && is_before(timestamps->value, to->tsval))
		timestamps->value = to->tsval;
	/* TSecr counts in segments with ACK only. */
	if (segment->flags & ACK)
		timestamps->echo -= to->ts_shift;
	if (is_good)
		raise(&to->tsval, timestamps->value);
}

/* Our own socket may have acknowledged more than the segment does. The other peer would discard a segment
 * with a much older acknowledgement, data and all (RFC 5961, 5.2). So the acknowledgement is raised, and the
 * window still ends where it ended. Call only for segments that were taken: a made up acknowledgement would
 * become a right one, and its receiver would believe window and data. */
static __always_inline void raise_ack(__u32 *ack, __u32 *window, const struct face *to)
{
	if (!is_before(*ack, to->ack))
		return;
	__u32 gap = to->ack - *ack;
	*window = *window > gap ? *window - gap : 0;
	*ack = to->ack;
}

/* Whether the window ends where the furthest one did, rounded to its scale. Otherwise a newer segment has
 * overtaken this one. */
static __always_inline int is_newest_window(const struct segment *segment, const struct face *face)
{
	return is_before(face->said_edge, segment->ack + window_of(segment, face) + (1U << (face->peer_scale & 15)));
}

/* A late ACK (is_late_ack()) gets the number that the receiver expects, because it ignores older ones. An
 * overtaken one stays old: its receiver would take its smaller window for the newest. */
static __always_inline __u32 number_for(const struct segment *segment, const struct face *from,
					const struct face *to)
{
	__u32 seq = segment->seq + from->shift;

	if (!(to->known & SAID) || !is_before(seq, to->una))
		return seq;
	return is_late_ack(segment, from) && is_newest_window(segment, from) ? to->una : seq;
}

/* A segment's numbers and window, as the other peer gets them. */
struct numbers {
	__u32 seq, ack, window;
	__u32 are_told; /* the segment was taken, so they are noted */
};

/* The header as the other peer gets it, its options apart. */
static __always_inline void renumber(struct tcphdr *tcp, const struct segment *segment,
				     const struct numbers *numbers, const struct face *to)
{
	tcp->seq = bpf_htonl(numbers->seq);
	if (segment->flags & ACK)
		tcp->ack_seq = bpf_htonl(numbers->ack);
	tcp->window = scaled(numbers->window, to);
	tcp->source = to->key.local_port;
	tcp->dest = to->key.remote_port;
}

#define NOT_USUAL 1

/* NOT_USUAL: nothing was changed. It and translate_any() have frames of their own: all frames of a call have
 * 512 bytes together. */
static __noinline int translate_usual(struct __sk_buff *skb, const struct segment *segment,
				      const struct numbers *numbers, const struct face *from, struct face *to)
{
	struct usual_tcp was, is;

	if (!segment || !numbers || !from || !to)
		return -1;
	if (read_usual(skb, segment, &was))
		return NOT_USUAL;
	struct timestamps timestamps = { bpf_ntohl(was.value), bpf_ntohl(was.echo) };
	is = was;
	renumber(&is.tcp, segment, numbers, to);
	shift_timestamps(&timestamps, segment, from, to, numbers->are_told);
	is.value = bpf_htonl(timestamps.value);
	is.echo = bpf_htonl(timestamps.echo);
	return write_usual(skb, segment, &was, &is, &to->key);
}

static __noinline int translate_any(struct __sk_buff *skb, const struct segment *segment,
				    const struct numbers *numbers, const struct face *from, struct face *to)
{
	if (!segment || !numbers || !from || !to)
		return -1;
	struct rewriting rewriting = {};
	struct timestamps timestamps;

	if (begin_rewriting(skb, segment, &rewriting))
		return -1;
	struct options *options = rewriting.options;
	renumber(&rewriting.is, segment, numbers, to);
	if (options && !read_timestamps(options, &timestamps)) {
		shift_timestamps(&timestamps, segment, from, to, numbers->are_told);
		set_option_word(options, options->timestamps + TIMESTAMP_VALUE, timestamps.value);
		set_option_word(options, options->timestamps + TIMESTAMP_ECHO, timestamps.echo);
	}
	if (options && options->sack)
		shift_sack_blocks(options, -to->shift);
	return finish_rewriting(skb, segment, &rewriting) ||
	       change_addresses(skb, segment, &to->key.local, &to->key.remote);
}

/* A segment of a spliced session on its way from one connection to the other. */
struct crossing {
	const struct segment *segment;
	struct spliced *flow;
	struct face *from, *to;
	int is_tail; /* our sockets still stand */
	int is_good; /* the segment was taken, so that it tells the other peer something */
};

static __always_inline int translate(struct __sk_buff *skb, const struct crossing *crossing)
{
	const struct segment *segment = crossing->segment;
	struct face *from = crossing->from, *to = crossing->to;
	struct numbers numbers = {
		.seq = number_for(segment, from, to),
		.ack = segment->ack - to->shift,
		.window = window_of(segment, from),
		.are_told = crossing->is_good,
	};

	if (crossing->is_tail && crossing->is_good)
		raise_ack(&numbers.ack, &numbers.window, to);
	int outcome = translate_usual(skb, segment, &numbers, from, to);
	if (outcome == NOT_USUAL)
		outcome = translate_any(skb, segment, &numbers, from, to);
	if (outcome)
		return -1;
	if (crossing->is_good)
		note_told(to, end_of(segment) + from->shift, numbers.ack, numbers.ack + numbers.window);
	return 0;
}

/* A wire must not speak for loopback, nor loopback for a host: tc runs before the kernel's own checks of
 * addresses (martians, rp_filter). */
static __always_inline int is_by_its_way(struct __sk_buff *skb, const struct face *from)
{
	return (from->device == LOOPBACK) == (skb->ifindex == LOOPBACK);
}

/* Sends the segment on to the other peer: out by its device or, from loopback to loopback, up to a socket of
 * this host. A redirection to loopback's ingress would drop the route: without one, the kernel drops
 * loopback's addresses as martians as soon as the socket's own route is out of date. */
static __always_inline int send_on(struct __sk_buff *skb, const struct face *to)
{
	if (to->device == LOOPBACK && skb->ifindex == LOOPBACK)
		return PASS;
	/* The priority tag (VLAN 0) belongs to the wire that the segment came by. */
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return DROP;
	return bpf_redirect_neigh(to->device, 0, 0, 0);
}
