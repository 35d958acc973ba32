/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Version 1, one line of text (PROXY 2.1). "The receiver must wait for the CRLF sequence before starting to
 * decode the addresses": first the end of the line is searched, then the fields before it are parsed byte by
 * byte. */
#pragma once

#define V1_LONGEST 107
#define NO_GAP 0xff

/* The rest of the line after "PROXY ": its kind, NEED_MORE, or MALFORMED. */
enum v1_kind { V1_PARTIAL, V1_TCP4, V1_TCP6, V1_UNKNOWN, V1_WRONG };

static __always_inline int starts_with(const __u8 *start, __u32 have, const char *text, __u32 len)
{
	for (__u32 i = 0; i < len; i++)
		if (i < have && start[i] != text[i])
			return 0;
	return 1;
}

static __always_inline enum v1_kind v1_kind(const __u8 *start, __u32 have)
{
	if (starts_with(start, have, "PROXY UNKNOWN", 13))
		return have < 13 ? V1_PARTIAL : V1_UNKNOWN;
	if (starts_with(start, have, "PROXY TCP4", 10))
		return have < 10 ? V1_PARTIAL : V1_TCP4;
	if (starts_with(start, have, "PROXY TCP6", 10))
		return have < 10 ? V1_PARTIAL : V1_TCP6;
	return V1_WRONG;
}

/* Whether a byte may stand between TCP4 or TCP6 and the CR. */
static __always_inline int v1_allows(__u8 byte)
{
	if (byte == ' ' || byte == '.' || (byte >= '0' && byte <= '9'))
		return 1;
	__u8 lower = byte | 0x20;
	return byte == ':' || (lower >= 'a' && lower <= 'f');
}

enum v1_line { V1_INVALID = -1, V1_GOES_ON, V1_ENDS };

/* The byte at `at`, behind the kind: whether the CRLF ends there. It looks at the byte before it, too, in
 * memory: the verifier would follow each value of a variable through the rest of the line. */
GLOBAL int v1_line_byte(struct header_scratch *scratch, __u32 at, __u32 kind)
{
	__u32 body = kind == V1_UNKNOWN ? 13 : 10;

	if (!scratch || at < body || at >= V1_LONGEST)
		return V1_INVALID;
	__u8 byte = scratch->start[at], before = scratch->start[at - 1];
	if (at == body)
		return byte == ' ' || (kind == V1_UNKNOWN && byte == '\r') ? V1_GOES_ON : V1_INVALID;
	if (byte == '\n' && before == '\r')
		return V1_ENDS;
	if (kind == V1_UNKNOWN) /* free text, but for a CR directly behind UNKNOWN */
		return before == '\r' && at == body + 1 ? V1_INVALID : V1_GOES_ON;
	return before != '\r' && (byte == '\r' || v1_allows(byte)) ? V1_GOES_ON : V1_INVALID;
}

/* The offset of the CRLF; 0: not there yet; negative: it can't come any more. */
GLOBAL int v1_line_end(struct header_scratch *scratch, __u32 have, __u32 kind)
{
	if (!scratch)
		return -1;
	for (__u32 i = kind == V1_UNKNOWN ? 13 : 10; i < V1_LONGEST; i++) {
		if (i >= have)
			break;
		enum v1_line line = v1_line_byte(scratch, i, kind);
		if (line != V1_GOES_ON)
			return line == V1_ENDS ? (int)i - 1 : -1;
	}
	/* "If the CRLF sequence is not found in the first 107 characters, the receiver should declare the line
	 * invalid": known as soon as the last possible place of the CR has another byte. */
	if (have >= V1_LONGEST)
		return -1;
	if (have == V1_LONGEST - 1 && scratch->start[V1_LONGEST - 2] != '\r')
		return -1;
	return 0;
}

static __always_inline int hex_digit(__u8 byte)
{
	if (byte >= '0' && byte <= '9')
		return byte - '0';
	byte |= 0x20;
	if (byte >= 'a' && byte <= 'f')
		return byte - 'a' + 10;
	return -1;
}

static __always_inline void v1_next_number(struct v1 *v1)
{
	v1->hex = v1->decimal = 0;
	v1->digits = v1->leading_zero = v1->not_decimal = 0;
}

static __always_inline void v1_next_field(struct v1 *v1)
{
	v1_next_number(v1);
	v1->bytes = v1->dots = v1->colons = 0;
	v1->version = 4;
	v1->gap = NO_GAP;
	v1->empty = 1;
}

/* Appends to the address; negative: it has no room. */
static __always_inline int v1_push(struct v1 *v1, __u8 byte)
{
	if (v1->bytes >= 16)
		return -1;
	v1->address[v1->bytes & 15] = byte;
	v1->bytes++;
	return 0;
}

static __always_inline int v1_end_octet(struct v1 *v1)
{
	/* "leading zeros are not permitted" */
	if (!v1->digits || v1->digits > 3 || v1->not_decimal || v1->leading_zero || v1->decimal > 255)
		return -1;
	int full = v1_push(v1, v1->decimal);
	v1_next_number(v1);
	return full;
}

static __always_inline int v1_end_group(struct v1 *v1)
{
	if (!v1->digits || v1->digits > 4)
		return -1;
	int full = v1_push(v1, v1->hex >> 8) | v1_push(v1, v1->hex);
	v1_next_number(v1);
	return full;
}

/* A digit, dot or colon of an address. */
static __always_inline int v1_address_byte(struct v1 *v1, __u8 byte)
{
	if (byte == '.') {
		v1->dots++;
		v1->colons = 0;
		return v1_end_octet(v1);
	}
	if (byte == ':') {
		if (v1->dots || v1->colons == 2)
			return -1;
		v1->version = 6;
		if (v1->digits && v1_end_group(v1))
			return -1;
		if (++v1->colons == 2) {
			if (v1->gap != NO_GAP)
				return -1; /* a second :: */
			v1->gap = v1->bytes;
		}
		return 0;
	}
	int digit = hex_digit(byte);
	if (digit < 0 || v1->digits >= 4)
		return -1;
	/* A colon before the first group is half of "::". */
	if (v1->colons == 1 && v1->bytes == 0)
		return -1;
	v1->colons = 0;
	if (v1->digits && v1->decimal == 0)
		v1->leading_zero = 1;
	if (digit > 9)
		v1->not_decimal = 1;
	v1->hex = v1->hex << 4 | digit;
	v1->decimal = v1->decimal * 10 + digit;
	v1->digits++;
	return 0;
}

/* The groups after the gap move to the end. */
static __always_inline void v1_widen_gap(const struct v1 *v1, struct address *address)
{
	__u8 *to = (__u8 *)address;
	__u32 behind = v1->bytes - v1->gap;

	/* Unrolled: Linux 6.1 refuses a loop whose body the compiler places before its head. */
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < 16; i++) {
		if (i < v1->gap)
			to[i] = v1->address[i];
		else if (i >= 16 - behind)
			to[i] = v1->address[(i + v1->bytes) & 15];
		else
			to[i] = 0;
	}
}

/* Fields 0 and 2 are the client's address and port, 1 and 3 the destination's. */
static __always_inline struct endpoint *v1_endpoint(const struct v1 *v1, struct header *header)
{
	return v1->field & 1 ? &header->destination : &header->client;
}

/* Each address is read as what it is, and one of them must be of the announced family: NGINX announces the
 * client's, and writes its own address as it is. */
static __always_inline int v1_end_address(struct v1 *v1, struct header *header)
{
	struct address *address = &v1_endpoint(v1, header)->address;

	if (v1->version == v1->announced)
		v1->is_named = 1;
	if (v1->field == 0)
		header->client_version = v1->version;
	if (v1->dots ? v1->dots != 3 || v1_end_octet(v1) : v1->digits && v1_end_group(v1))
		return -1;
	if (v1->version == 4) {
		if (v1->bytes != 4)
			return -1;
		address->word[2] = MAPPED;
		__builtin_memcpy(&address->word[3], v1->address, 4);
		return 0;
	}
	if (v1->colons == 1)
		return -1; /* ends with a single colon */
	/* "::" stands for at least one group; without it all groups must be there. */
	if (v1->gap == NO_GAP ? v1->bytes != 16 : v1->bytes > 14)
		return -1;
	if (v1->gap == NO_GAP)
		v1->gap = 16;
	v1_widen_gap(v1, address);
	return 0;
}

/* A port: decimal, 0 to 65535, "heading zeroes are not permitted". */
static __always_inline int v1_port_byte(struct v1 *v1, __u8 byte)
{
	if (byte < '0' || byte > '9' || v1->digits >= 5 || (v1->digits && v1->decimal == 0))
		return -1;
	v1->decimal = v1->decimal * 10 + (byte - '0');
	v1->digits++;
	return 0;
}

static __always_inline int v1_end_port(struct v1 *v1, struct header *header)
{
	if (!v1->digits || v1->decimal > 65535)
		return -1;
	v1_endpoint(v1, header)->port = bpf_htons(v1->decimal);
	return 0;
}

/* Parses the next byte of "ADDRESS ADDRESS PORT PORT" and a final space; nonzero: the line is invalid. */
GLOBAL int v1_byte(struct header_scratch *scratch, __u32 byte)
{
	if (!scratch)
		return -1;
	struct v1 *v1 = &scratch->v1;

	if (byte != ' ') {
		v1->empty = 0;
		return v1->field < 2 ? v1_address_byte(v1, byte) : v1_port_byte(v1, byte);
	}
	if (v1->empty || v1->field > 3)
		return -1; /* "exactly one space" between fields */
	if (v1->field < 2 ? v1_end_address(v1, &scratch->header) : v1_end_port(v1, &scratch->header))
		return -1;
	v1->field++;
	v1_next_field(v1);
	return 0;
}

GLOBAL enum verdict read_v1(struct header_scratch *scratch, __u32 have, __u32 transport)
{
	if (!scratch)
		return MALFORMED;
	if (!starts_with(scratch->start, have, "PROXY", 5))
		return NOT_PROXY;
	enum v1_kind kind = v1_kind(scratch->start, have);
	if (kind == V1_WRONG)
		return MALFORMED;
	if (kind == V1_PARTIAL)
		return NEED_MORE;
	__s32 end = v1_line_end(scratch, have, kind);
	if (end < 0)
		return MALFORMED;
	if (end == 0)
		return NEED_MORE;

	scratch->header.is_v1 = 1;
	scratch->header.len = end + 2;
	if (kind == V1_UNKNOWN)
		return ITSELF; /* "the receiver must ignore anything presented before the CRLF is found" */
	__builtin_memset(&scratch->v1, 0, sizeof(scratch->v1));
	scratch->v1.announced = kind == V1_TCP4 ? 4 : 6;
	v1_next_field(&scratch->v1);
	for (__s32 i = 11; i < V1_LONGEST; i++) {
		if (i >= end)
			break;
		if (v1_byte(scratch, scratch->start[i]))
			return MALFORMED;
	}
	/* The CR ends the last of exactly four fields. */
	if (v1_byte(scratch, ' ') || scratch->v1.field != 4 || !scratch->v1.is_named)
		return MALFORMED;
	return transport == STREAM ? ADDRESSES : ITSELF;
}
