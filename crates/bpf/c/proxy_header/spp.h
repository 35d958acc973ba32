/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Simple Proxy Protocol: 38 bytes before each datagram, answers included ("Simple Proxy Protocol Header",
 * Cloudflare Spectrum's reference). All fields are always present; IPv4 addresses are mapped ones. */
#pragma once

struct spp {
	__u8 magic[2];
	__u8 client[16], proxy[16];
	__u8 client_port[2], proxy_port[2];
};

#define SPP_LEN 38

GLOBAL enum verdict read_spp(struct header_scratch *scratch, __u32 have)
{
	if (!scratch)
		return MALFORMED;
	struct header *header = &scratch->header;
	const struct spp *spp = (const struct spp *)scratch->start;

	__builtin_memset(header, 0, sizeof(*header));
	if ((have > 0 && spp->magic[0] != 0x56) || (have > 1 && spp->magic[1] != 0xec))
		return NOT_PROXY;
	if (have < SPP_LEN)
		return NEED_MORE;
	header->len = SPP_LEN;
	__builtin_memcpy(&header->client.address, spp->client, sizeof(spp->client));
	__builtin_memcpy(&header->client.port, spp->client_port, sizeof(spp->client_port));
	__builtin_memcpy(&header->destination.address, spp->proxy, sizeof(spp->proxy));
	__builtin_memcpy(&header->destination.port, spp->proxy_port, sizeof(spp->proxy_port));
	header->client_version = 6;
	return ADDRESSES;
}
