/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The structs that the programs share with each other and, through pinned maps, with truepeer. src/layout.rs
 * asserts the same sizes. A change of a struct or a map must raise LAYOUT there: otherwise an upgrade reads
 * old entries in the new shape. */
#pragma once
#include "lib/base.h"

/* The treatment of new connections to a port. */
enum state {
	ATTACHED,  /* validated */
	DRAINING,  /* detached while old connections go on: new ones pass unjudged, with their header */
	REFUSING,  /* as DRAINING, but new ones are refused if their sender must send a header */
	PAUSED,    /* tables are being exchanged: SYNs are dropped, and their senders repeat them */
};

/* An attached port. */
struct port {
	__u16 counters; /* its place in the counters */
	__u8 state; /* enum state */
	__u8 group; /* the attachment whose rules apply */
};

enum dialect { DIALECT_EVERY = 1, DIALECT_SPP, DIALECT_FIRST, DIALECT_STANDALONE };

enum backend_kind { PLAIN_ANSWERS = 1, ANSWERS_BY_SLOT = 2 /* some answers go by struct udp_slot */ };

/* A UDP backend's port. */
struct backend {
	__u16 counters; /* the counters of a port that leads to it */
	__u8 kind;  /* enum backend_kind */
	__u8 group; /* the attachment of the ports that lead to it */
};

/* An attached UDP port. */
struct udp_port {
	struct port port;
	__be16 backend_port; /* where the backend is bound */
	__u8 dialect;        /* enum dialect: where the header is */
	__u8 unused;
};

/* The settings of a network namespace. */
struct settings {
	__u32 edition;    /* of the rules: changes after each change of them; never 0 */
	__u32 validated;     /* random, never 0: skb->priority of packets that a device's program has validated */
	__u32 begins_again; /* the kernel makes a connection of a handshake that it has given up: restart.h */
	__u32 programs;   /* a fingerprint of those that were attached last; no program reads it, `status` does */
	__u64 netns;      /* the namespace's inode; no program reads it, `status` shows it */
	__u32 bans;       /* enum bans */
	__u32 unused;
};

/* The limits of an attachment. */
struct terms {
	__u64 header_timeout_ns;
	__u64 header_wait_ns; /* a sender that is silent this long is served without an optional header */
	__u32 header_max;     /* bytes */
	__u32 udp_silence_s;  /* after this silence a client is not answered through its sender any more; 0: never */
	__u32 refuse_unshowable; /* instead of showing the sender where the socket can't show the client */
	__u32 shows_destination; /* getsockname() answers the header's destination */
};

/* NAMES_A_CLIENT: the client may still not be showable. MAY_COME_LATE: a header was optional, and the
 * sender silent until --header-wait (late.h). */
enum flow_header { NAMES_NOBODY, NAMES_A_CLIENT, MAY_COME_LATE };

/* A connection whose header has been removed and which has a socket. */
struct flow {
	struct address client; /* MAY_COME_LATE: word[0]: number of the sender's first byte; word[1]: see late.h */
	__s32 delta;         /* add to the sender's sequence numbers, subtract from our acknowledgements */
	__be16 client_port;
	__u8 client_version; /* 4 or 6; 0: the sender stands for itself */
	__u8 header;         /* enum flow_header */
};

/* A UDP flow as the backend identifies it. A client's newest flow is stored under local address 0. Another
 * flow of the same client, to another address of this host, is stored under that address. */
struct udp_key {
	struct address client;
	struct address local; /* where its datagrams go to */
	__be16 client_port;
	__be16 backend_port;
};

/* The destination of its answers, and their form. */
struct udp_flow {
	__u64 seen_ns;           /* its newest datagram */
	__u64 ticket;            /* the slot of its last answer: udp_slots.h; 0: none yet. Written by udp_send */
	__u64 version;           /* another one whenever the entry is written as a whole: udp_maps.h,
				  * copy_udp_flow */
	/* From here on a flow is compared with the newest datagram. */
	struct address sender;
	struct address local;    /* where its datagrams go to; never 0 */
	struct address proxy;    /* SPP: what the header says of the sender's side */
	__u32 device;            /* where its datagrams come in */
	__be16 sender_port;
	__be16 port;             /* what the sender sends to */
	__be16 proxy_port;
	__be16 said_client_port; /* SPP: as the header says it */
	__u16 counters;              /* of its port's counters */
	__u8 is_spp;
	__u8 needs_slot;         /* udp_egress must change its answers */
	/* Up to here. */
	__u32 edition;           /* of the rules by which its client was found good to be claimed; 0: it
				  * was not claimed */
	__u32 group;             /* its attachment, whose udp_silence_s applies */
};

#define UDP_FLOW_COMPARED_FROM offsetof(struct udp_flow, sender)
#define UDP_FLOW_COMPARED_TO offsetof(struct udp_flow, edition)

/* The client that a sender's address and port has named, where its later datagrams have no header. */
struct udp_named {
	__u64 seen_ns;       /* its newest datagram */
	__u64 version;       /* as in struct udp_flow */
	struct address client;
	__be16 client_port;
	__u16 is_named;      /* by a header; otherwise the sender stands for itself */
	__u32 unused;
};

/* An answer on its way from udp_send to udp_egress, with everything that udp_egress needs. udp_slots.h lists
 * who may write it and when. */
struct udp_slot {
	__u64 state;
	__u64 version;         /* of the flow that it belongs to; 0: none */
	struct address sender; /* where the answer goes to */
	struct address client; /* SPP, as the next */
	struct address proxy;
	__be16 backend_port;   /* where the answer comes from */
	__be16 sender_port;
	__be16 port;           /* what the sender sends to */
	__be16 said_client_port;
	__be16 proxy_port;
	__u16 counters;
	__u8 is_spp;
	__u8 unused[3];
};

/* The longest v1 header, which exceeds the addresses of a v2 header (PROXY 2.1, 2.2). */
#define HEADER_START 108

/* The length of the signature of v2: after this many bytes it is certain whether there is a header. */
#define REPLAY_MAX 12

enum stage {
	AWAITED,  /* its header has not come yet, or not all of it */
	ESTABLISHED, /* its header is off, but it has no socket yet: the accept queue may be full */
	NO_SLOT, /* it has a socket, but tp_flows has no room */
};

/* A connection without a socket. It has no effect until this host's SYN-ACK is sent: a SYN that the kernel
 * doesn't accept changes nothing. */
struct pending {
	__u64 born_ns;
	__u32 isn;          /* the sender's initial sequence number */
	__u32 guess;        /* the header length that its SYN was shifted by */
	__u32 have;         /* bytes of header that we have seen and the kernel has acknowledged;
			     * established: all of it */
	__u32 our_isn;      /* the SYN-ACK's sequence number */
	__u32 ts_recent;    /* the sender's newest timestamp, as in RFC 7323 */
	__u32 tsval_first;  /* the timestamp of our first SYN-ACK */
	__u32 tsval_synack; /* of our newest SYN-ACK */
	__u32 tsval_newest; /* of the newest packet to the sender */
	__u32 device;       /* where its SYN came in */
	__u8 stage;         /* enum stage */
	__u8 is_answered;   /* our SYN-ACK is out: what it says is noted here */
	__u8 is_by_cookie;  /* answered with a SYN cookie: the kernel keeps no request socket */
	__u8 has_timestamps; /* both sides send them */
	union {
		__u8 start[HEADER_START]; /* awaited */
		struct {                  /* established */
			struct flow flow; /* what it will be */
			__u8 replay[REPLAY_MAX];  /* data that was acknowledged while it could be a header's start */
			__u32 replay_len;
			struct endpoint destination; /* to be shown; no address: the socket's own is */
		};
	};
	__u32 is_busy;      /* a processor is judging one of its segments */
	/* What SYN and SYN-ACK have agreed on. Only restart.h needs it. */
	__u32 clock_offset; /* our timestamps are the milliseconds since the boot, and this */
	__u16 mss;          /* of the SYN */
	__u8 snd_wscale;    /* of the SYN */
	__u8 rcv_wscale;    /* of the SYN-ACK */
	__u8 agreed;        /* enum agreed */
	__u8 is_ours;       /* a socket of this very port has answered: it is not redirected to another one */
	__u8 is_proved;     /* the sender has acknowledged our SYN-ACK */
	__u8 listener;      /* enum listener */
	__u32 walk;         /* of its header's TLVs: proof.h */
};

/* Found the secret. */
#define WALK_FOUND (1U << 31)

/* A client that is banned, or a sender that must prove itself. */
struct ban_key {
	__be16 port;        /* where the ban counts; 0: everywhere. Of tp_proofs: the attachment */
	__u16 zero;
	struct address client;
};

struct ban_prefix {
	__u32 bits;         /* of the key: 32, and the prefix's */
	struct ban_key key;
};

/* Whether the listener is of the named cgroup (cgroup.h). */
enum listener { LISTENER_UNSEEN, LISTENER_INSIDE, LISTENER_OUTSIDE };

enum agreed { WINDOW_SCALE = 1, SELECTIVE_ACKS = 2, CONGESTION_MARKS = 4 };

_Static_assert(sizeof(struct port) == 4 && sizeof(struct udp_port) == 8, "src/layout.rs");
_Static_assert(sizeof(struct backend) == 4 && sizeof(struct settings) == 32, "src/layout.rs");
_Static_assert(sizeof(struct terms) == 32 && sizeof(struct udp_key) == 36, "src/layout.rs");
_Static_assert(sizeof(struct udp_flow) == 96 && sizeof(struct udp_slot) == 80, "src/layout.rs");
_Static_assert(sizeof(struct ban_prefix) == 24 && sizeof(struct udp_named) == 40, "bans.rs, test/udp.rs");
_Static_assert(sizeof(struct flow) == 24 && sizeof(struct pending) == 176, "src/layout.rs");
