/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The data of a socket's flow: the client's name, and what its packets need. It is stored with the socket,
 * not by addresses: a connection may be reset and its addresses reused while it still waits for accept(). */
#pragma once
#include "attach/layout.h"

struct name {
	struct address client;
	__be16 client_port;
	__u8 client_version; /* 4 or 6; 0: the sender stands for itself */
	__u8 unused;
	__s32 delta;         /* as in struct flow: on its way out a packet needs no look into itself to know it */
};

/* The entry is removed with the socket. */
TABLE(tp_names, SK_STORAGE, 0, int, struct name, BPF_F_NO_PREALLOC);

/* With --destination header: the header's destination, which getsockname() answers. */
TABLE(tp_destinations, SK_STORAGE, 0, int, struct endpoint, BPF_F_NO_PREALLOC);
