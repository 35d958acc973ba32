/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The contents of a datagram's header, and whether its client may be shown. */
#pragma once
#include "lib/udp.h"
#include "proxy_header/header.h"
#include "attach/proof.h"
#include "attach/udp_maps.h"

/* The client as the backend sees it, and the stored part of its header. */
struct opened {
	struct address client;
	struct address proxy;    /* SPP */
	__be16 proxy_port;
	__be16 said_client_port;
	__be16 client_port;
	__u16 is_of_flow;        /* its sender has named the client before: udp_named.h */
	__u32 header_len;        /* 0: it had none */
	__u32 is_named;          /* the client is another than the sender */
	__u32 is_spp;
};

/* Only the first datagram of a flow has a header. */
static __always_inline int has_bare_datagrams(const struct udp_port *udp_port)
{
	return udp_port->dialect >= DIALECT_FIRST;
}

/* The form of the header. */
static __always_inline enum dialect dialect_of(const struct udp_port *udp_port)
{
	return udp_port->dialect == DIALECT_SPP ? DIALECT_SPP : DIALECT_EVERY;
}

/* Loads the part of the payload that a header may use. */
static __always_inline int load_start(struct __sk_buff *skb, struct header_scratch *scratch,
				      const struct datagram *datagram)
{
	__u32 have = datagram->payload_len < HEADER_START ? datagram->payload_len : HEADER_START;
	if (have == 0)
		return 0;
	__u32 last = have - 1;
	asm volatile("%0 &= 127" : "+r"(last));
	if (bpf_skb_load_bytes(skb, datagram->payload_at, scratch->fresh, last + 1))
		return -1;
	__builtin_memcpy(scratch->start, scratch->fresh, HEADER_START);
	return 0;
}

/* Too short for a header, or no header: if it is optional, this is the sender's own data. */
static __always_inline int is_bare(enum verdict verdict, const struct datagram *datagram,
				   enum dialect dialect)
{
	__u32 signature = dialect == DIALECT_SPP ? 2 : 12;
	return verdict == NOT_PROXY || (verdict == NEED_MORE && datagram->payload_len < signature);
}

/* Whether its payload begins with a header, or with a wrong one. */
GLOBAL int begins_with_header(struct __sk_buff *skb, const struct datagram *datagram,
			      const struct udp_port *udp_port)
{
	if (!datagram || !udp_port)
		return 0;
	enum dialect dialect = dialect_of(udp_port);
	struct header_scratch *scratch = header_scratch();
	__u8 first[2];

	/* Most datagrams of strangers are no header: two bytes tell. */
	if (bpf_skb_load_bytes(skb, datagram->payload_at, first, sizeof(first)))
		return 0;
	if (dialect == DIALECT_SPP ? first[0] != 0x56 || first[1] != 0xec : first[0] != '\r' || first[1] != '\n')
		return 0;
	if (!scratch || load_start(skb, scratch, datagram))
		return 0;
	return !is_bare(read_datagram_header(scratch, datagram->payload_len, dialect), datagram, dialect);
}

/* Returns the reason to refuse it, or 0. */
GLOBAL int open_datagram(struct __sk_buff *skb, const struct datagram *datagram,
			 const struct udp_port *udp_port, __u32 rule, struct opened *opened)
{
	if (!datagram || !udp_port || !opened)
		return FAILED;
	struct header_scratch *scratch = header_scratch();
	struct terms *terms = terms_of(&udp_port->port);
	enum dialect dialect = dialect_of(udp_port);

	if (!scratch || !terms || load_start(skb, scratch, datagram))
		return FAILED;
	enum verdict verdict = read_datagram_header(scratch, datagram->payload_len, dialect);
	const struct header *header = &scratch->header;
	__builtin_memset(opened, 0, sizeof(*opened));
	opened->client = datagram->ip.source;
	opened->client_port = datagram->source_port;
	if (is_bare(verdict, datagram, dialect))
		return rule == RULE_OPTIONAL ? 0 : has_bare_datagrams(udp_port) ? REFUSED_NO_FLOW : REFUSED_NO_HEADER;
	if (verdict == NEED_MORE || verdict == MALFORMED || header->len > datagram->payload_len)
		return REFUSED_MALFORMED;
	if (header->len > terms->header_max)
		return REFUSED_TOO_LONG;
	set_sender(scratch, &datagram->ip.source, udp_port->port.group);
	scratch->walk = header->tlvs;
	scratch->from = 0;
	scratch->packet_at = datagram->payload_at;
	if (lacks_secret(skb, datagram->payload_len))
		return REFUSED_UNPROVED;
	opened->header_len = header->len;
	if (verdict != ADDRESSES)
		return 0;
	opened->client = header->client.address;
	/* Port 0 can't be answered. */
	if (header->client.port)
		opened->client_port = header->client.port;
	opened->is_named = 1;
	if (dialect == DIALECT_SPP) {
		opened->is_spp = 1;
		opened->said_client_port = header->client.port;
		opened->proxy = header->destination.address;
		opened->proxy_port = header->destination.port;
	}
	return 0;
}

/* A sender that has named itself, or nobody, by a header. It is not banned: a load balancer that gets no
 * answer to its health checks cuts off everybody. */
static __always_inline int speaks_for_itself(const struct datagram *datagram, const struct opened *opened,
					     __u32 rule)
{
	int by_header = opened->header_len || (opened->is_of_flow && (opened->is_named || rule == RULE_REQUIRE));

	return by_header && is_same_address(&opened->client, &datagram->ip.source);
}

/* Checks whether the client may and can be shown. Returns the reason to refuse it, or 0. */
static __always_inline int validate_named_client(const struct datagram *datagram,
						 const struct udp_port *udp_port, struct opened *opened,
						 __u32 rule)
{
	enum counter refusal = validate_client(&opened->client, opened->is_named, udp_port->port.group);

	if (refusal)
		return refusal;
	if (!speaks_for_itself(datagram, opened, rule) &&
	    is_banned(&opened->client, datagram->destination_port))
		return REFUSED_BANNED;
	if (!opened->is_named) {
		if (!opened->is_of_flow)
			count(&udp_port->port, opened->header_len ? NAMED_ITSELF : HEADER_ABSENT);
		return 0;
	}
	if (is_ipv4(&opened->client) == (datagram->ip.version == 4))
		return 0;
	/* A datagram has one family. Its answers must carry their header back, which names the client. */
	struct terms *terms = terms_of(&udp_port->port);

	if (opened->is_spp || (terms && terms->refuse_unshowable))
		return REFUSED_FAMILY;
	count(&udp_port->port, CLIENT_NOT_SHOWABLE);
	opened->client = datagram->ip.source;
	opened->client_port = datagram->source_port;
	opened->is_named = 0;
	return 0;
}
