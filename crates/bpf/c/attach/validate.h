/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Whether the kernel would accept a segment of a handshake, checked before anything is learnt from it. The
 * rules are those of tcp_check_req() (net/ipv4/tcp_minisocks.c) for the request socket, in the sender's
 * numbers. A segment that fails is dropped and changes nothing, so an attacker who doesn't know the numbers
 * can neither end nor forge a handshake. */
#pragma once
#include "lib/csum.h"
#include "lib/tcp_opts.h"
#include "attach/maps.h"
#include "lib/sk.h"

/* rp_filter is 1 on this device: the kernel drops packets whose sender's route leads over another device; set
 * when the program is loaded. */
const volatile __u32 has_strict_rp_filter = 0;

/* The kernel has answered the SYN, so its route to the sender leads over the SYN's device, and strict reverse
 * path filtering drops packets from that address on other devices. Without the filter, routes may be
 * asymmetric. IPv6 has no such filter. */
static __always_inline int is_spoofed(struct __sk_buff *skb, const struct segment *segment,
				      const struct pending *pending)
{
	return has_strict_rp_filter && segment->ip.version == 4 && skb->ingress_ifindex != pending->device;
}

static __always_inline __u32 offset_of(const struct segment *segment, const struct pending *pending)
{
	return segment->seq - (pending->isn + 1);
}

/* "If the segment carries an unacceptable ACK": it must acknowledge this host's SYN-ACK, because nothing else
 * has been sent. */
static __always_inline int is_our_number(const struct segment *segment, const struct pending *pending)
{
	return segment->ack == pending->our_isn + 1;
}

/* It comes right behind a SYN that was answered with a cookie, and acknowledges that. */
static __always_inline int has_cookie(struct __sk_buff *skb, const struct segment *segment,
				      const struct pending *pending)
{
	__u32 family = 0;

	return find_socket(skb, segment, segment->seq + pending->guess, &family) == ANSWERS_COOKIE;
}

/* A cookie is proved by the kernel; it may be the answer to another SYN of the same sender than the one that
 * was noted first. */
static __always_inline int proves_cookie(struct __sk_buff *skb, const struct segment *segment,
					 struct pending *pending)
{
	if (!has_cookie(skb, segment, pending))
		return 0;
	pending->isn = segment->seq - 1;
	pending->our_isn = segment->ack - 1;
	return 1;
}

/* PAWS, and the echo: between this host's first timestamp and its newest (TSEcrRejected of Linux 6.15). */
static __always_inline int is_timely(const struct pending *pending, const struct timestamps *timestamps)
{
	/* Behind a cookie the kernel knows no earlier one, and checks the echo itself: it encodes the options. */
	__u32 first = pending->tsval_first, echo = timestamps->echo;

	if (pending->ts_recent && (__s32)(pending->ts_recent - timestamps->value) > 0)
		return pending->is_by_cookie;
	return pending->is_by_cookie || !echo || echo - first <= pending->tsval_newest - first;
}

/* Only segments with ACK and without SYN and RST. `tsval` becomes the segment's timestamp, if it has one. */
GLOBAL int is_acceptable(struct __sk_buff *skb, const struct segment *segment, struct pending *pending,
			 __u32 *tsval)
{
	struct timestamps timestamps = {};

	if (!segment || !pending || !tsval || !(segment->flags & ACK))
		return 0;
	if (!is_our_number(segment, pending) && !pending->is_by_cookie)
		return 0;
	if (read_only_timestamps(skb, segment, &timestamps)) {
		struct options *options = read_options(skb, segment);
		if (!options)
			return 1;
		/* The kernel has no key for it and drops it. */
		if (options->signature)
			return 0;
		if (read_timestamps(options, &timestamps))
			return 1;
	}
	if (!pending->has_timestamps)
		return 1;
	*tsval = timestamps.value;
	return is_timely(pending, &timestamps);
}

/* Notes the segment's timestamp, and returns the segment's kind. 0: it is damaged; nothing was noted. */
static __always_inline int learn(struct __sk_buff *skb, const struct segment *segment,
				 struct pending *pending, __u32 tsval)
{
	if (!is_intact(skb, segment))
		return 0;
	if (tsval && (__s32)(offset_of(segment, pending) - pending->have) <= 0)
		pending->ts_recent = tsval;
	return 1;
}
