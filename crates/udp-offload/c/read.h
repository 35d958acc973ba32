/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Reads a datagram, and its header where flows are told apart by it. Everything that is not as usual is left
 * to user space, which reads it as a whole. */
#pragma once
#include "layout.h"
#include "lib/udp.h"

#define V2_IPV4_LEN 28
#define V2_IPV6_LEN 52
#define SPP_LEN 38

struct header {
	__u32 words[HEADER_WORDS]; /* zero behind its end */
	__u32 len;
	struct flow_key key;
};

/* Too large for the stack. */
struct scratch {
	struct datagram from, to;
	struct header header;
};

SCRATCH(scratches, struct scratch);

static __always_inline __u32 headers_len(const struct datagram *datagram)
{
	return datagram->payload_at - datagram->ip.at;
}

/* No fragment, IP options, extension headers or bytes that UDP does not count. */
static __always_inline int is_usual(const struct datagram *datagram)
{
	__u32 ip_header_len = datagram->ip.version == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	return !datagram->ip.is_fragment && !datagram->has_no_len &&
	       datagram->ip.payload_at - datagram->ip.at == ip_header_len &&
	       datagram->payload_at + datagram->payload_len == datagram->ip.end;
}

static __always_inline void key_of(const struct datagram *datagram, struct flow_key *key)
{
	key->remote = datagram->ip.source;
	key->local = datagram->ip.destination;
	key->remote_port = datagram->source_port;
	key->local_port = datagram->destination_port;
}

/* A datagram of the kernel's own or of the network has a sum, or none over IPv4. Nothing may be learnt from
 * one that the kernel would drop. */
static __noinline int is_datagram_intact(struct __sk_buff *skb, const struct datagram *datagram)
{
	__u32 check_at = datagram->ip.payload_at + offsetof(struct udphdr, check);
	__be16 check;

	if (bpf_skb_load_bytes(skb, check_at, &check, sizeof(check)))
		return 0;
	if (check == 0)
		return datagram->ip.version == 4 && is_ip_intact(skb, &datagram->ip);
	return is_payload_intact(skb, &datagram->ip, sizeof(struct udphdr) + datagram->payload_len, check_at,
				 IPPROTO_UDP);
}

static __always_inline int is_v2(const __u32 *words, __u8 family, __u8 len)
{
	return words[0] == bpf_htonl(0x0d0a0d0a) && words[1] == bpf_htonl(0x000d0a51) &&
	       words[2] == bpf_htonl(0x5549540a) && words[3] == bpf_htonl(0x21000000 | family << 16 | len);
}

/* The client of a header becomes the remote end of its key. */
static __always_inline int read_v2_ipv4(struct __sk_buff *skb, __u32 at, struct header *header)
{
	if (bpf_skb_load_bytes(skb, at, header->words, V2_IPV4_LEN))
		return -1;
	header->len = V2_IPV4_LEN;
	map_ipv4(&header->key.remote, header->words[4]);
	__builtin_memcpy(&header->key.remote_port, &header->words[6], sizeof(__be16));
	return 0;
}

static __always_inline int read_v2_ipv6(struct __sk_buff *skb, __u32 at, struct header *header)
{
	if (bpf_skb_load_bytes(skb, at, header->words, V2_IPV6_LEN))
		return -1;
	header->len = V2_IPV6_LEN;
	__builtin_memcpy(&header->key.remote, &header->words[4], sizeof(struct address));
	__builtin_memcpy(&header->key.remote_port, &header->words[12], sizeof(__be16));
	return 0;
}

static __always_inline int read_spp(struct __sk_buff *skb, __u32 at, struct header *header)
{
	if (bpf_skb_load_bytes(skb, at, header->words, SPP_LEN))
		return -1;
	header->len = SPP_LEN;
	__builtin_memcpy(&header->key.remote, (__u8 *)header->words + 2, sizeof(struct address));
	__builtin_memcpy(&header->key.remote_port, (__u8 *)header->words + 34, sizeof(__be16));
	return 0;
}

/* Of an aggregate: that of its first datagram. Nonzero: it begins with none, or with one that is not as usual
 * (TLVs, LOCAL). */
static __noinline int read_header(struct __sk_buff *skb, const struct datagram *datagram,
				  struct header *header)
{
	__u32 at = datagram->payload_at, len = datagram->payload_len;
	int outcome = -1;

	if (len < V2_IPV4_LEN)
		return -1;
	__builtin_memset(header, 0, sizeof(*header));
	if (bpf_skb_load_bytes(skb, at, header->words, 16))
		return -1;
	if (is_v2(header->words, 0x12, V2_IPV4_LEN - 16))
		outcome = read_v2_ipv4(skb, at, header);
	else if (is_v2(header->words, 0x22, V2_IPV6_LEN - 16))
		outcome = len < V2_IPV6_LEN ? -1 : read_v2_ipv6(skb, at, header);
	else if ((header->words[0] & bpf_htonl(0xffff0000)) == bpf_htonl(0x56ec0000))
		outcome = len < SPP_LEN ? -1 : read_spp(skb, at, header);
	header->key.local = datagram->ip.destination;
	header->key.local_port = datagram->destination_port;
	return outcome;
}
