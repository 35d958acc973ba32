/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* A handshake that waits for its header is a request socket in the kernel, which gives it up: after its last
 * SYN-ACK (63 s), after three seconds if half of the listener's backlog is filled, or at once if a device's
 * queue refuses a SYN-ACK. To the sender the connection is open, and a plain port would hold it. Its pending
 * connection knows all that the request socket knew. So the kernel makes another one of that, by the function
 * that it has for SYN cookies of BPF programs: bpf_sk_assign_tcp_reqsk() (Linux 6.9). */
#pragma once
#include "attach/maps.h"
#include "lib/request.h"

static __always_inline int is_out_of_time(const struct port *port, const struct pending *pending)
{
	struct terms *terms = terms_of(port);

	return !terms || bpf_ktime_get_ns() - pending->born_ns >= terms->header_timeout_ns;
}

/* Why a handshake that the kernel has given up can't begin again; 0: it can. A redirected one (DNAT) has its
 * request socket elsewhere. */
static __always_inline enum counter why_not_again(const struct port *port, const struct pending *pending)
{
	struct settings *settings = settings_here();

	if (!settings || !settings->begins_again || pending->is_by_cookie || !pending->is_ours)
		return REFUSED_REDIRECTED;
	/* `detach --now` has the kernel end it, and then removes the programs. */
	if (port->state != ATTACHED)
		return REFUSED_DETACHING;
	return is_out_of_time(port, pending) ? REFUSED_TIMEOUT : 0;
}

/* The segment begins the handshake again, and ends it. Nonzero: the kernel does not do it. */
static __noinline int begin_again(struct __sk_buff *skb, const struct segment *segment,
				  const struct pending *pending)
{
	struct request request = {
		.rcv_tsval = pending->ts_recent,
		/* The kernel counts on from here. */
		.rcv_tsecr = milliseconds() + pending->clock_offset,
		.mss = pending->mss,
		.rcv_wscale = pending->rcv_wscale,
		.snd_wscale = pending->snd_wscale,
		.ecn_ok = !!(pending->agreed & CONGESTION_MARKS),
		.wscale_ok = !!(pending->agreed & WINDOW_SCALE),
		.sack_ok = !!(pending->agreed & SELECTIVE_ACKS),
		.tstamp_ok = !!pending->has_timestamps,
	};

	return make_connection(skb, segment, &request);
}
