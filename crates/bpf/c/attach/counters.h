/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The counters of each port, in the order of src/counters.rs. */
#pragma once
#include "attach/layout.h"
#include "lib/metrics.h"

enum counter {
	SYN_TRACKED,
	HEADER_V1,
	HEADER_V2,
	HEADER_ABSENT,        /* there was none, and it was optional */
	DELTA_ZERO,           /* the guess was right: no later packet is altered */
	DELTA_NONZERO,
	HEADER_SPLIT,         /* a part of a header, acknowledged */
	NAMED_ITSELF,         /* LOCAL, UNKNOWN: the sender stands for itself */
	CLIENT_NOT_SHOWABLE,  /* IPv6 on an AF_INET listener: the sender's address stays */
	MPTCP_DECLINED,
	FASTOPEN_DECLINED,
	HELD_ACK,             /* kept from accept() until the header is here */
	EARLY_SEGMENT,        /* a segment before it is missing: dropped, the sender sends it again */
	PASSED_NO_LISTENER,   /* nobody here listens: forwarded, translated, or to be answered with RST */
	PASSED_NOT_A_SENDER,
	REFUSED_NO_HEADER,
	REFUSED_MALFORMED,
	REFUSED_TOO_LONG,
	REFUSED_TIMEOUT,
	REFUSED_CLAIM,
	REFUSED_DENIED,
	REFUSED_SIGNED,       /* TCP-MD5, TCP-AO: sequence numbers are signed */
	REFUSED_SPLIT_COOKIE, /* a split header can't be acknowledged while SYN cookies are in use */
	REFUSED_REDIRECTED,   /* no request socket: the port is translated (DNAT) after us, or the kernel
			       * gave it up and can't begin again */
	REFUSED_STRAY,        /* its SYN came before attach, or was forgotten */
	REFUSED_FULL,
	FAILED,               /* a helper of the kernel failed; the sender sends again */
	DATAGRAM,             /* UDP: a header was taken off */
	HEADER_SPP,
	ANSWER,
	ANSWER_TOO_LONG,      /* no room for its SPP header */
	ANSWER_AGGREGATED,    /* UDP_SEGMENT: more than can be taken apart for their SPP headers */
	SPLIT_UP,             /* datagrams that the kernel or a device had aggregated */
	REFUSED_FRAGMENT,     /* fragments (only the first has ports), and packets with IPv6 extension headers */
	REFUSED_AGGREGATED,   /* more than can be split up again */
	REFUSED_FAMILY,       /* SPP, or --unshowable refuse: the client is of another family */
	REFUSED_UNJUDGED,     /* no device's program has validated it: another device, DNAT onto the port,
			       * a tunnel */
	REFUSED_DAMAGED,      /* a wrong checksum or length: the kernel would drop it */
	ANSWER_REFUSED,       /* all slots for answers are taken (udp_slots.h) */
	NOT_TAKEN,            /* a segment of a handshake that the kernel would refuse: dropped, nothing learnt */
	REFUSED_DETACHING,    /* detach --refuse-new waits */
	BEGUN_AGAIN,          /* the kernel had given the handshake up: restart.h */
	HEADER_UNLISTED,      /* a header from an address that is not listed: passed as data */
	OUTSIDE_CGROUP,       /* the listener is not of the named cgroup: the sender's address stays */
	REFUSED_ELSEWHERE,    /* outside the container's cgroup, where no hook sees the connection */
	REFUSED_AFTER_WAIT,   /* a header, on a connection that was served without one: late.h */
	REFUSED_NO_FLOW,      /* UDP: no header, and none before it that is still remembered: udp_named.h */
	REFUSED_BANNED,       /* truepeer ban */
	REFUSED_UNPROVED,     /* a header without the secret of its sender: proof.h */
	COUNTERS,
};

#define MAX_PORTS 4096
#define MAX_SLOTS 64 /* the ports of a range are counted together */
#define SLOT_OF_NO_PORT MAX_SLOTS /* for packets whose port can't be read */

TABLE(tp_counters, PERCPU_ARRAY, (MAX_SLOTS + 1) * COUNTERS, __u32, __u64, 0);

static __always_inline void count_at(__u16 counters, enum counter counter)
{
	count_in(&tp_counters, counters * COUNTERS + counter);
}

static __always_inline void count(const struct port *port, enum counter counter)
{
	count_at(port->counters, counter);
}

static __always_inline int drop(const struct port *port, enum counter reason)
{
	count(port, reason);
	return DROP;
}

static __always_inline int pass(const struct port *port, enum counter reason)
{
	count(port, reason);
	return PASS;
}

/* For any port: the packet's own can't be read. */
static __always_inline int refuse_too_long(void)
{
	count_at(SLOT_OF_NO_PORT, REFUSED_FRAGMENT);
	return DROP;
}
