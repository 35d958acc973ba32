/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Reads a datagram, and rewrites it: other addresses and ports, a header removed or added.
 *
 * Checksums stay valid in every form that the kernel uses: a complete one (from the network), one that a
 * device must finish (from this host; it covers addresses and length only), none, and the device's sum of the
 * whole packet. */
#pragma once
#include <linux/udp.h>

#include "lib/csum.h"

struct datagram {
	struct ip ip; /* whose payload is the UDP header */
	__be16 source_port, destination_port;
	__u32 payload_at, payload_len;
	__u32 has_no_len; /* IPv6: the kernel takes a length of 0 for "all there is" (RFC 2675, 4) */
};

/* Nonzero: not UDP, or incomplete. A fragment, which is always incomplete, has its header here. */
static __always_inline int read_datagram(struct __sk_buff *skb, struct datagram *datagram)
{
	struct udphdr udp;

	if (read_ip(skb, IPPROTO_UDP, &datagram->ip))
		return -1;
	if (bpf_skb_load_bytes(skb, datagram->ip.payload_at, &udp, sizeof(udp)))
		return -1;
	datagram->source_port = udp.source;
	datagram->destination_port = udp.dest;
	datagram->payload_at = datagram->ip.payload_at + sizeof(udp);
	if (datagram->payload_at > datagram->ip.end)
		return -1;
	datagram->payload_len = datagram->ip.end - datagram->payload_at;
	datagram->has_no_len = datagram->ip.version == 6 && udp.len == 0;
	if (datagram->has_no_len)
		return 0;
	if (datagram->ip.is_fragment || skb->gso_size)
		return 0;
	/* IP's payload may be longer than UDP's, but not shorter (RFC 768). */
	__u32 len = bpf_ntohs(udp.len);
	if (len < sizeof(udp) || len - sizeof(udp) > datagram->payload_len)
		return -1;
	datagram->payload_len = len - sizeof(udp);
	return 0;
}

/* The facts of its IP header. */
static __always_inline __u16 ip_len_of(const struct datagram *datagram)
{
	__u32 end = datagram->payload_at + datagram->payload_len;
	return end - datagram->ip.at - (datagram->ip.version == 6 ? sizeof(struct ipv6hdr) : 0);
}

/* The longest datagram is moved in 32 parts. */
#define CHUNK 2048
#define CHUNKS 32

/* Bytes on their way from one offset of a packet to another. */
struct chunk {
	__u8 bytes[CHUNK];
};

SCRATCH(chunks, struct chunk);

/* Moves the `len` bytes at `from`, 1 to CHUNK. Nonzero: it failed. */
GLOBAL int move_chunk(struct __sk_buff *skb, __u32 from, __u32 to, __u32 len)
{
	struct chunk *chunk = ONLY_ENTRY(chunks);
	__u32 last = len - 1;

	if (!chunk || last >= CHUNK)
		return -1;
	asm volatile("%0 &= 2047" : "+r"(last));
	if (bpf_skb_load_bytes(skb, from, chunk->bytes, last + 1))
		return -1;
	asm volatile("%0 &= 2047" : "+r"(last));
	return bpf_skb_store_bytes(skb, to, chunk->bytes, last + 1, BPF_F_RECOMPUTE_CSUM);
}

/* Moves `len` bytes towards the packet's start. Nonzero: it failed. The last part stands behind the loop, as
 * in sum_bytes(). */
GLOBAL int move_down(struct __sk_buff *skb, __u32 from, __u32 to, __u32 len)
{
	for (__u32 i = 0; i < CHUNKS && len > CHUNK; i++) {
		if (move_chunk(skb, from, to, CHUNK))
			return -1;
		from += CHUNK;
		to += CHUNK;
		len -= CHUNK;
	}
	return len ? move_chunk(skb, from, to, len) : 0;
}

/* Moves `len` bytes towards the packet's end, the last ones first. Nonzero: it failed. */
GLOBAL int move_up(struct __sk_buff *skb, __u32 from, __u32 to, __u32 len)
{
	for (__u32 i = 0; i < CHUNKS && len > CHUNK; i++) {
		len -= CHUNK;
		if (move_chunk(skb, from + len, to + len, CHUNK))
			return -1;
	}
	return len ? move_chunk(skb, from, to, len) : 0;
}

/* Removes `len` bytes behind the UDP header. `change` becomes the difference in the payload's sum. Nonzero:
 * it failed, and the packet is corrupt. */
GLOBAL int take_out(struct __sk_buff *skb, const struct datagram *datagram, __u32 len, __u32 *change)
{
	if (!datagram || !change)
		return -1;
	__u32 rest_at = datagram->payload_at + len, rest_len = datagram->payload_len - len;
	__u32 out = 0, rest = 0;

	if (sum_bytes(skb, datagram->payload_at, len, &out))
		return -1;
	*change = subtract_sum(0, out);
	if (len & 1) {
		/* Bytes at odd offsets move to even ones. */
		if (sum_bytes(skb, rest_at, rest_len, &rest))
			return -1;
		*change = subtract_sum(*change, swap_sum(rest));
		*change = subtract_sum(*change, (__u32)~rest);
	}
	/* IP ignores the extra bytes at the packet's end: its header has the length. */
	return move_down(skb, rest_at, datagram->payload_at, rest_len);
}

static __always_inline __be16 udp_len_of(const struct datagram *datagram)
{
	return bpf_htons(sizeof(struct udphdr) + datagram->payload_len);
}

/* IPv4 addresses are mapped ones; the mapped prefix cancels out. */
static __always_inline __u32 pseudo_change(const struct datagram *from, const struct datagram *to)
{
	__u64 sum = changed(0, udp_len_of(from), udp_len_of(to));

	for (__u32 i = 0; i < 4; i++) {
		sum = changed(sum, from->ip.source.word[i], to->ip.source.word[i]);
		sum = changed(sum, from->ip.destination.word[i], to->ip.destination.word[i]);
	}
	return fold_to_word(sum);
}

static __always_inline __u32 header_change(const struct datagram *from, const struct datagram *to)
{
	__u64 sum = changed(0, udp_len_of(from), udp_len_of(to));

	sum = changed(sum, from->source_port, to->source_port);
	sum = changed(sum, from->destination_port, to->destination_port);
	return fold_to_word(sum);
}

GLOBAL int write_ipv4(struct __sk_buff *skb, const struct datagram *from, const struct datagram *to)
{
	if (!from || !to)
		return -1;
	__u32 at = from->ip.at;
	__be32 addresses[2] = { to->ip.source.word[3], to->ip.destination.word[3] };
	__be16 old_len = bpf_htons(from->ip.len), len = bpf_htons(to->ip.len);
	__u64 sum = changed(0, old_len, len);

	sum = changed(sum, from->ip.source.word[3], addresses[0]);
	sum = changed(sum, from->ip.destination.word[3], addresses[1]);
	bpf_l3_csum_replace(skb, at + offsetof(struct iphdr, check), 0, fold_to_word(sum), 0);
	if (old_len != len)
		bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, tot_len), &len, sizeof(len), 0);
	return bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, saddr), addresses, sizeof(addresses), 0);
}

GLOBAL int write_ipv6(struct __sk_buff *skb, const struct datagram *from, const struct datagram *to)
{
	if (!from || !to)
		return -1;
	struct address addresses[2] = { to->ip.source, to->ip.destination };
	__u32 at = from->ip.at;
	__be16 len = bpf_htons(to->ip.len);

	if (from->ip.len != to->ip.len)
		bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, payload_len), &len, sizeof(len), 0);
	return bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, saddr), addresses, sizeof(addresses), 0);
}

/* Rewrites the addresses, ports and length from `from` to `to`. The payload has already been rewritten; its
 * sum differs by `change`. Nonzero: it failed. */
GLOBAL int write_datagram(struct __sk_buff *skb, const struct datagram *from, const struct datagram *to,
			  __u32 change)
{
	if (!from || !to)
		return -1;
	__u32 udp_at = from->ip.payload_at, check_at = udp_at + offsetof(struct udphdr, check);
	__be16 header[3] = { to->source_port, to->destination_port, udp_len_of(to) };
	__u32 pseudo = pseudo_change(from, to);
	/* A sum of zero means none (RFC 768). */
	__u64 flags = BPF_F_MARK_MANGLED_0;

	if (from->ip.version == 4 ? write_ipv4(skb, from, to) : write_ipv6(skb, from, to))
		return -1;
	bpf_l4_csum_replace(skb, check_at, 0, subtract_sum(header_change(from, to), (__u32)~change), flags);
	bpf_l4_csum_replace(skb, check_at, 0, pseudo, flags | BPF_F_PSEUDO_HDR);
	/* The device's sum of the whole packet: the kernel assumes that a changed field is balanced by its changed
	 * checksum. It already knows of the payload. IPv6 addresses, unlike IPv4 ones, have no header checksum that
	 * balances them. */
	bpf_csum_update(skb, (__u32)~change);
	if (from->ip.version == 6)
		bpf_csum_update(skb, pseudo);
	/* A fragment has the length of the whole datagram. */
	if (from->payload_len == to->payload_len)
		return bpf_skb_store_bytes(skb, udp_at, header, 2 * sizeof(__be16), BPF_F_INVALIDATE_HASH);
	return bpf_skb_store_bytes(skb, udp_at, header, sizeof(header), BPF_F_INVALIDATE_HASH);
}
