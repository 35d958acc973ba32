/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Sessions that the kernel makes by itself (`--splice full`): what full_in and full_out share with truepeer. src/full/layout.rs asserts the same
 * sizes. docs/internals/splice.md, All in the kernel, tells the steps. */
#pragma once
#include "splice_layout.h"

/* How much of a connection's start is held until the backend has answered. The sender is offered no more, so nothing is dropped. */
#define HOLD 1024

/* In `listener` of a flow, beside the number: its header was of version 1. */
#define BY_V1 0x10000

/* A port of truepeer's listeners, of one family. */
struct full_port {
	__be16 port;
	__u8 version; /* 4 or 6 */
	__u8 unused;
};

struct full_listener {
	struct address address; /* where it listens; 0: at every address of the family */
	struct address backend;
	__be16 backend_port;
	__u8 group;             /* its lists */
	__u8 is_any;
	__u32 number;           /* truepeer's */
	__u32 header_max;
	__u32 left_s;           /* since when it answers no SYN, in seconds of the monotonic clock; 0: it does */
	__u32 is_draining;      /* its socket is closed: the kernel still makes sessions of those whom it has answered */
};

struct full_endpoint {
	struct address address;
	__be16 port;
	__u16 unused;
};

/* The TCP options of a backend, and how it is reached, as a connection of truepeer's own socket has shown them. */
struct full_backend {
	__u64 learnt_ns;       /* 0: nothing yet, or not that which is needed */
	struct address asked_as;
	__u32 asked_isn;       /* of the kernel's newest SYN */
	__u32 asked_by;        /* the device by which it left */
	__u32 asked_mark;
	__be16 asked_port;
	__u16 asked_mss;
	/* Of the SYN that was answered: */
	__u32 device;
	__u32 mark;            /* of a backend on this host it decides where its answers go (tcp_fwmark_accept) */
	__u16 own_mss;         /* what the route takes */
	__u16 mss;             /* of the backend's SYN-ACK */
};

/* By which device the kernel answers a sender. */
struct full_sender {
	__u32 device;
	__u16 own_mss;
	__u16 unused;
};

#define LENT_PLACES 16384

/* Places in ts_flows that truepeer lends, in a ring: it puts them behind `end`, and the programs take them at `begin`. Both only grow; number n
 * stands at n % LENT_PLACES. */
struct full_places {
	__u32 begin;
	__u32 unused[15]; /* so that `end` has a cache line of its own */
	__u32 end;
	__u32 unused_too[15];
	__u32 places[LENT_PLACES];
};

enum dial_state {
	NO_DIAL,
	DIALLING, /* the backend is asked */
	GIVEN_UP, /* truepeer's listener takes the connection, with the sender's next segment */
};

/* A connection whose header is here, and whose backend has not answered yet. Its place is given to others: compare `down` or `up` under the
 * lock before using it. */
struct dial {
	__u64 began_ns;
	__u32 place;
	struct flow_key down; /* as the sender's segments come in */
	struct flow_key up;   /* as the backend's segments come in */
	__u32 listener;
	__u32 isn, our_isn;   /* of the sender's connection */
	__u32 header_len;
	__u32 have;           /* bytes held, header and all */
	__u32 tsval;          /* the sender's newest timestamp, as it came with the header */
	__u32 tsecr;          /* and what it echoed */
	__u32 clock;          /* of our timestamps towards the sender: their value minus our milliseconds */
	__u32 up_isn;         /* of the SYN that the backend gets */
	__u32 up_tsval;       /* of all that the backend gets until it has answered: the sender's clock goes on from it */
	__u32 device;         /* the sender's */
	__u32 up_device;
	__u32 up_mark;
	__be16 window;        /* the sender's newest */
	__u16 mss;            /* what the backend is told */
	__u8 scale;           /* the sender's */
	__u8 state;           /* enum dial_state */
	__u8 link[12];        /* link addresses of the sender's segment: to here, from there */
	__u16 unused;
	volatile __u32 is_busy; /* the lock */
	__u8 held[2 * HOLD];  /* twice: offset and length are each below HOLD for the verifier */
};

_Static_assert(sizeof(struct full_places) == 128 + 4 * LENT_PLACES, "src/full/places.rs");
_Static_assert(sizeof(struct full_port) == 4, "src/full/layout.rs");
_Static_assert(sizeof(struct full_listener) == 52, "src/full/layout.rs");
_Static_assert(sizeof(struct full_endpoint) == 20, "src/full/layout.rs");
_Static_assert(sizeof(struct full_backend) == 56, "src/full/layout.rs");
