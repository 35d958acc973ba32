/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Version 2, the binary header (PROXY 2.2). */
#pragma once

#define V2_FIXED 16 /* signature, version and command, family and protocol, length */
#define V2_INET 12
#define V2_INET6 36
#define V2_UNIX 216

enum v2_family { V2_FAMILY_INET = 1, V2_FAMILY_INET6 = 2, V2_FAMILY_UNIX = 3 };

static __always_inline __u32 v2_block(__u8 family, __u8 protocol)
{
	if (protocol == 0 || protocol > DGRAM)
		return 0; /* UNSPEC: whatever the family says, there is nothing to read */
	return family == V2_FAMILY_INET ? V2_INET : family == V2_FAMILY_INET6 ? V2_INET6 :
	       family == V2_FAMILY_UNIX ? V2_UNIX : 0;
}

GLOBAL enum verdict read_v2(struct header_scratch *scratch, __u32 have, __u32 transport)
{
	if (!scratch)
		return MALFORMED;
	static const __u8 signature[12] = "\r\n\r\n\0\r\nQUIT\n";
	struct header *header = &scratch->header;
	const __u8 *start = scratch->start;

	for (__u32 i = 0; i < sizeof(signature); i++)
		if (i < have && start[i] != signature[i])
			return NOT_PROXY;
	if (have <= 12)
		return NEED_MORE;
	__u8 command = start[12] & 0x0f;
	/* "the receiver must only accept this value"; "must drop connections presenting unexpected values here" */
	if (start[12] >> 4 != 2 || command > 1)
		return MALFORMED;
	if (have <= 13)
		return NEED_MORE;
	__u8 family = start[13] >> 4, protocol = start[13] & 0x0f;
	/* "must be rejected as invalid by receivers"; of LOCAL, "the family which is ignored" */
	if (command == 1 && (family > V2_FAMILY_UNIX || protocol > DGRAM))
		return MALFORMED;
	if (have < V2_FIXED)
		return NEED_MORE;

	header->len = V2_FIXED + (start[14] << 8 | start[15]);
	__u32 block = v2_block(family, protocol);
	header->tlvs = header->len < V2_FIXED + block ? header->len : V2_FIXED + block;
	if (command == 0)
		return ITSELF; /* LOCAL: "must use the real connection endpoints" */
	if (header->len < V2_FIXED + block)
		return MALFORMED;
	if (protocol != transport || block == 0 || block == V2_UNIX)
		return ITSELF;
	if (have < V2_FIXED + block)
		return NEED_MORE;

	if (family == V2_FAMILY_INET) {
		header->client.address.word[2] = header->destination.address.word[2] = MAPPED;
		__builtin_memcpy(&header->client.address.word[3], start + 16, 4);
		__builtin_memcpy(&header->destination.address.word[3], start + 20, 4);
		__builtin_memcpy(&header->client.port, start + 24, 2);
		__builtin_memcpy(&header->destination.port, start + 26, 2);
		header->client_version = 4;
	} else {
		__builtin_memcpy(&header->client.address, start + 16, 16);
		__builtin_memcpy(&header->destination.address, start + 32, 16);
		__builtin_memcpy(&header->client.port, start + 48, 2);
		__builtin_memcpy(&header->destination.port, start + 50, 2);
		header->client_version = 6;
	}
	return ADDRESSES;
}
