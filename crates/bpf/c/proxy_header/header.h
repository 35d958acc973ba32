/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Parses the start of a connection. It accepts, waits and refuses exactly as crates/proto does, except that
 * it ignores TLVs and their checksum. Tests compare it with that crate by its table and by fuzzing. */
#pragma once
#include "attach/layout.h"

enum verdict {
	NEED_MORE,    /* valid so far */
	ADDRESSES,    /* a complete start, with a client for our transport */
	ITSELF,       /* a complete start that names nobody: LOCAL, UNKNOWN, UNSPEC, UNIX, another transport */
	NOT_PROXY,    /* the signature does not match */
	MALFORMED,    /* the signature matches, the rest can't */
};

enum transport { STREAM = 1, DGRAM = 2 };

struct header {
	struct endpoint client, destination;
	__u32 len;           /* of the whole header, which may go on beyond what was parsed */
	__u16 client_version; /* 4 or 6 */
	__u16 is_v1;
	__u32 tlvs;          /* where they begin */
};

/* The state of parsing a v1 line; see v1.h. It is in a map because the verifier tracks each value that it can
 * distinguish. Of map memory it knows only the bounds. */
struct v1 {
	__u8 address[16];
	__u32 hex, decimal; /* of the digits since the last : or . */
	__u8 digits, leading_zero, not_decimal;
	__u8 bytes;         /* of address that are filled */
	__u8 gap;           /* where :: stands in it, or NO_GAP */
	__u8 dots;
	__u8 colons;        /* directly before this byte */
	__u8 field;         /* 0, 1: addresses; 2, 3: ports */
	__u8 version;       /* of the address: 4 until a colon comes, then 6 */
	__u8 announced;     /* 4 or 6 */
	__u8 is_named;      /* an address is of the announced family */
	__u8 empty;         /* the field, so far */
};

/* As long as policy's SECRET_LEN. */
#define SECRET_MAX 64

struct secret {
	__u64 len;
	__u64 words[SECRET_MAX / 8]; /* 0 after it */
};

/* Too large for the stack. */
struct header_scratch {
	struct header header;
	struct v1 v1;
	__u8 start[HEADER_START];
	__u8 fresh[128];
	struct pending pending;
	struct secret value;     /* of a TLV; proof.h, with the rest */
	struct ban_prefix sender;
	__u32 walk;              /* where the next TLV begins, and WALK_FOUND */
	__u32 from, packet_at;   /* from here on the header's bytes are in the packet, and where */
};

SCRATCH(header_scratches, struct header_scratch);

static __always_inline struct header_scratch *header_scratch(void)
{
	return ONLY_ENTRY(header_scratches);
}

#include "proxy_header/spp.h"
#include "proxy_header/v1.h"
#include "proxy_header/v2.h"

/* Validates the `have` bytes at scratch->start (HEADER_START are enough). */
static __always_inline enum verdict read_header(struct header_scratch *scratch, __u32 have, __u32 transport)
{
	__builtin_memset(&scratch->header, 0, sizeof(scratch->header));
	if (have == 0)
		return NEED_MORE;
	if (scratch->start[0] == 'P')
		return read_v1(scratch, have, transport);
	if (scratch->start[0] == '\r')
		return read_v2(scratch, have, transport);
	return NOT_PROXY;
}

/* The same for a datagram, which is complete: a partial header is invalid. PROXY 2.1: v1 is for TCP. */
static __always_inline enum verdict read_datagram_header(struct header_scratch *scratch, __u32 have,
							 enum dialect dialect)
{
	if (dialect == DIALECT_SPP)
		return read_spp(scratch, have);
	__builtin_memset(&scratch->header, 0, sizeof(scratch->header));
	if (have == 0)
		return NEED_MORE;
	return read_v2(scratch, have, DGRAM);
}
