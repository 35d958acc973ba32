/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Spliced flows: what splice_in and splice_out share with truepeer. src/splice/layout.rs asserts the same
 * sizes; whoever changes a struct or a map here raises SPLICE_LAYOUT there.
 *
 * A flow is two TCP connections of one session. Each connection is a `struct face`: our socket (or, once that
 * is closed, these programs) as the peer sees it. All numbers of a face are those of its own connection, in
 * host order. */
#pragma once
#include "attach/layout.h"

enum splice_stage {
	SPLICE_FREE,
	SPLICE_ARMED,   /* nothing is changed; the programs learn what both sides have said */
	SPLICE_TAIL,    /* bytes from the cut on are translated; those before it are the sockets' still */
	SPLICE_SPLICED, /* everything is translated; the sockets are closed, or about to be */
	SPLICE_CLOSING, /* both ends have been acknowledged; translated still, for retransmissions */
	SPLICE_DEAD,    /* one side has sent a reset; translated still, since the other validates it */
	SPLICE_GONE,    /* a new connection uses the addresses: the keys are removed */
};

/* What is known of a face: bits of `known`. */
#define TOLD 0x01       /* nxt, ack, edge: what the peer was told */
#define SAID 0x02       /* una, end: what the peer said */
#define CLOCK 0x04      /* our socket's clock */
#define TS_SHIFT 0x08   /* ts_shift */
#define HELD 0x10       /* our socket offers no more than the other peer takes: `shift` is known */
#define FIN_SAID 0x20   /* fin */
#define FIN_TAKEN 0x40  /* the other peer has acknowledged it */
#define RESET 0x80      /* the peer has reset the connection */
#define CUT 0x100       /* bytes are translated: our socket does not know its connection any more */
#define SAID_CLOCK 0x200 /* said_clock */
/* One of our sockets has sent a segment since truepeer cleared this: `device` is that of the current
 * route. */
#define WAY 0x400
/* Truepeer notes it: no translated segment reaches the peer, or the kernel's programs don't see what it
 * says. */
#define WAY_LOST 0x800

struct face {
	struct flow_key key; /* as the peer's segments come in */
	/* Written by truepeer while the flow is armed. */
	__u32 shift;         /* add to the peer's numbers: what the other peer expects */
	__u32 cut;           /* up to here our socket had segments at the cut, some ahead of a gap */
	/* What the peer was told, by our socket or by the other peer. */
	__u32 nxt;           /* the number behind the last byte sent to it */
	__u32 ack;           /* the newest acknowledgement */
	__u32 edge;          /* the right edge of the widest window */
	__u32 tsval;         /* the newest timestamp */
	/* What the peer said and was taken. */
	__u32 una;           /* its newest acknowledgement */
	__u32 first;         /* of its stream's first byte. Written by truepeer at the cut */
	__u32 max_window;    /* the widest it offered */
	__u32 said_edge;     /* the right edge of that which reaches furthest */
	__u32 fin;           /* the number behind its FIN */
	/* Until our socket is closed. */
	__u32 kept;          /* bytes before this one are our socket's */
	__u32 own_nxt;       /* the number behind the last byte that our socket has sent */
	__u32 clock;         /* of its timestamps: their value minus our milliseconds since boot */
	__u32 ts_shift;      /* add to the peer's timestamps */
	__u32 device;        /* by which our segments leave to the peer */
	__u8 peer_scale;     /* window scale of what the peer says */
	__u8 own_scale;      /* of what it is told */
	__u8 has_timestamps;
	__u8 unused;
	volatile __u32 known;
	__u32 said_clock;    /* the peer's timestamps minus our milliseconds since boot */
	__u64 asked_ns;      /* when its last SYN was answered by a question (RFC 5961). In DEAD, upstream:
			      * when the reset came; downstream: when a SYN of either peer was answered, or
			      * the reset came */
	__u64 end;           /* the number behind its last byte. The upper half counts how often the
			      * numbers have wrapped since `first`: so `end - first` is the length of its
			      * stream, its FIN included */
	__u64 segments;      /* translated */
	__u64 sent_ns;       /* when our newest segment was sent: the kernel's own mark of it */
};

/* Aligned, so that no two flows share a cache line: two CPUs that serve neighbours would take it from each
 * other for each segment. */
struct spliced {
	volatile __u32 stage; /* enum splice_stage */
	__u32 unused;
	__u64 since_ns;       /* truepeer writes it: when the session began, in time since boot */
	struct face faces[2]; /* 0: downstream, the sender's; 1: upstream, the backend's */
} __attribute__((aligned(64)));

/* Where a key leads: the flow's place, and in the lowest bit the face. */
struct splice_place {
	__u32 bits;
};

_Static_assert(sizeof(struct face) == 144, "src/splice/layout.rs");
_Static_assert(sizeof(struct spliced) == 320, "src/splice/layout.rs");
