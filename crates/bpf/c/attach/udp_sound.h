/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Whether the kernel would accept a datagram. Nothing must be learnt from a datagram that the kernel would
 * drop. A datagram that teaches nothing new is not checked and keeps its damage, for the kernel to find. */
#pragma once
#include "lib/udp.h"

static __always_inline __u32 sum_of_words(const void *words, __u32 len, __u32 sum)
{
	return bpf_csum_diff(0, 0, (__be32 *)words, len, sum);
}

/* The IPv4 header checksum (RFC 791, 3.1). */
static __always_inline int has_good_ip_header(struct __sk_buff *skb, const struct datagram *datagram)
{
	__u32 sum = 0;

	if (datagram->ip.version != 4)
		return 1;
	if (sum_bytes(skb, datagram->ip.at, datagram->ip.payload_at - datagram->ip.at, &sum))
		return 0;
	return fold_sum(sum) == 0xffff;
}

/* The pseudo-header: addresses, length and protocol (RFC 768; RFC 8200, 8.1). */
static __always_inline __u32 pseudo_sum(const struct datagram *datagram)
{
	struct {
		struct address source, destination;
		__be32 len, protocol;
	} pseudo = {
		.source = datagram->ip.source,
		.destination = datagram->ip.destination,
		.len = bpf_htonl(sizeof(struct udphdr) + datagram->payload_len),
		.protocol = bpf_htonl(IPPROTO_UDP),
	};
	if (datagram->ip.version == 4)
		pseudo.source.word[2] = pseudo.destination.word[2] = 0; /* not mapped */
	return fold_sum(sum_of_words(&pseudo, sizeof(pseudo), 0));
}

/* Whether a device must finish the checksum (CHECKSUM_PARTIAL): such a datagram comes from this machine. The
 * kernel's helper then updates the field only for changes of the addresses, and that is visible here. */
static __always_inline int is_unfinished(struct __sk_buff *skb, __u32 check_at, __u16 check)
{
	__u16 changed = 0;

	if (bpf_l4_csum_replace(skb, check_at, 0, 1, 0) || bpf_skb_load_bytes(skb, check_at, &changed, sizeof(changed)))
		return 0;
	if (changed == check)
		return 1;
	bpf_skb_store_bytes(skb, check_at, &check, sizeof(check), 0);
	return 0;
}

/* Called only for datagrams that would change a table. */
GLOBAL int is_datagram_intact(struct __sk_buff *skb, const struct datagram *datagram)
{
	if (!datagram)
		return 0;
	__u32 udp_at = datagram->ip.payload_at, check_at = udp_at + offsetof(struct udphdr, check);
	__u32 sum = 0;
	__u16 check;

	if (!has_good_ip_header(skb, datagram) || bpf_skb_load_bytes(skb, check_at, &check, sizeof(check)))
		return 0;
	if (check == 0)
		return datagram->ip.version == 4; /* IPv6 demands one (RFC 8200, 8.1) */
	if (bpf_csum_level(skb, BPF_CSUM_LEVEL_QUERY) >= 0)
		return 1; /* the device has looked */
	__u32 pseudo = pseudo_sum(datagram);
	if (check == (__u16)pseudo && is_unfinished(skb, check_at, check))
		return 1;
	if (sum_bytes(skb, udp_at, sizeof(struct udphdr) + datagram->payload_len, &sum))
		return 0;
	return fold_sum(fold_sum(sum) + pseudo) == 0xffff;
}
