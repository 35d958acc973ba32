/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Sessions that the kernel makes by itself (`--splice full`): what full_in and full_out share with truepeer.
 * src/full/layout.rs asserts the same sizes. The steps are in docs/internals/splice.md, *All in the
 * kernel*. */
#pragma once
#include "offload/layout.h"

/* The bytes of a connection's start that are held until the backend has answered. The sender's window is as
 * large, so nothing is dropped. */
#define HOLD 1024

/* In `listener` of a flow, beside the number: the header had version 1. */
#define BY_V1 0x10000

/* A port of truepeer's listeners, of one family. */
struct full_port {
	__be16 port;
	__u8 version; /* 4 or 6 */
	__u8 unused;
};

struct full_listener {
	struct address address; /* without is_any, the only address that it listens on */
	struct address backend;
	__be16 backend_port;
	__u8 group;             /* its two bits in the lists (of_group) */
	__u8 is_any;
	__u32 number;           /* truepeer's */
	__u32 header_max;
	__u32 left_s;           /* when it stopped answering SYNs, in seconds of the monotonic clock; 0: it
				 * answers */
	__u32 is_draining;      /* its socket is closed: the kernel still makes sessions of the senders
				 * that it has answered */
};

struct full_endpoint {
	struct address address;
	__be16 port;
	__u16 unused;
};

/* A backend's TCP options and the way to it, learnt from a connection of truepeer's own socket. */
struct full_backend {
	__u64 learnt_ns;       /* 0: not learnt yet, or the backend lacks an option */
	struct address asked_as;
	__u32 asked_isn;       /* of the kernel's newest SYN */
	__u32 asked_by;        /* the device by which it left */
	__u32 asked_mark;
	__be16 asked_port;
	__u16 asked_mss;
	/* Copied from `asked_…` when the answer came: */
	__u32 device;
	__u32 mark;            /* routes the answers of a backend on this host (tcp_fwmark_accept) */
	__u16 own_mss;         /* the kernel's SYN had it */
	__u16 mss;             /* the backend's SYN-ACK had it */
};

/* The device by which the kernel answers a sender. */
struct full_sender {
	__u32 device;
	__u16 own_mss;
	__u16 unused;
};

#define LENT_PLACES 16384

/* A ring of places in ts_flows that truepeer lends to the programs: truepeer adds at `end`, the programs take
 * at `begin`. Both only grow; number n stands at n % LENT_PLACES. */
struct full_places {
	__u32 begin;
	__u32 unused[15]; /* so that `end` has a cache line of its own */
	__u32 end;
	__u32 unused_too[15];
	__u32 places[LENT_PLACES];
};

enum dial_state {
	NO_DIAL,
	DIALLING, /* the SYN is sent to the backend */
	GIVEN_UP, /* truepeer's listener takes the connection, with the sender's next segment */
};

/* A connection whose header has come and whose backend has not answered yet. Another connection may get its
 * place at any moment: compare `down` or `up` under the lock before using it. */
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
	__u32 clock;          /* our timestamps towards the sender minus our milliseconds */
	__u32 up_isn;         /* the backend's SYN has it */
	__u32 up_tsval;       /* the timestamp of every segment to the backend until it has answered; the
			       * sender's clock goes on from it */
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
