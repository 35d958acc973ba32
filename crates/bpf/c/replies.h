/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Segments that the programs generate by rewriting the current one: the bare ACK that ends a handshake, and
 * the RST that refuses. */
#pragma once
#include "options.h"

static __always_inline __be16 fold(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline __u64 pseudo_header(const struct address *source, const struct address *destination,
					   __u8 version, __u32 tcp_len)
{
	struct {
		struct address source, destination;
		__be32 len, protocol;
	} pseudo = { .len = bpf_htonl(tcp_len), .protocol = bpf_htonl(IPPROTO_TCP) };

	if (version == 6) {
		pseudo.source = *source;
		pseudo.destination = *destination;
	} else {
		pseudo.source.word[0] = source->word[3];
		pseudo.destination.word[0] = destination->word[3];
	}
	return bpf_csum_diff(0, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
}

/* Truncates the packet to an IP header and `tcp_len` bytes. */
static __always_inline int cut_to(struct __sk_buff *skb, const struct segment *segment, __u32 tcp_len)
{
	if (bpf_skb_change_tail(skb, segment->ip.payload_at + tcp_len, 0))
		return -1;
	if (segment->ip.version == 6) {
		__be16 len = bpf_htons(tcp_len);
		return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct ipv6hdr, payload_len), &len, sizeof(len), 0);
	}
	__be16 old = bpf_htons(segment->ip.len);
	__be16 len = bpf_htons(segment->ip.payload_at - segment->ip.at + tcp_len);
	bpf_l3_csum_replace(skb, segment->ip.at + offsetof(struct iphdr, check), old, len, sizeof(len));
	return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct iphdr, tot_len), &len, sizeof(len), 0);
}

/* Turns the segment with the header's end into the ACK that the kernel waits for: from `seq`, without data,
 * echoing `tsval` (0: unchanged). Its checksum is new, so the segment must have been found intact (intact.h):
 * otherwise damage would go unnoticed. */
GLOBAL int become_bare_ack(struct __sk_buff *skb, const struct segment *segment, __u32 seq, __be32 tsval)
{
	if (!segment)
		return -1;
	struct options *options = read_options(skb, segment);
	struct tcphdr tcp;

	if (bpf_skb_load_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp)))
		return -1;
	if (cut_to(skb, segment, segment->tcp_header_len))
		return -1;
	tcp.seq = bpf_htonl(seq);
	tcp.fin = tcp.psh = tcp.urg = 0;
	tcp.urg_ptr = 0;
	tcp.check = 0;

	__u64 sum = pseudo_header(&segment->ip.source, &segment->ip.destination, segment->ip.version, segment->tcp_header_len);
	sum = bpf_csum_diff(0, 0, (__be32 *)&tcp, sizeof(tcp), sum);
	if (options) {
		if (tsval && options->timestamps)
			for (__u32 i = 0; i < sizeof(tsval); i++)
				*option_byte(options, options->timestamps + 6 + i) = ((__u8 *)&tsval)[i];
		sum = bpf_csum_diff(0, 0, (__be32 *)options->bytes, sizeof(options->bytes), sum);
	}
	tcp.check = fold(sum);
	if (bpf_skb_store_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp), 0))
		return -1;
	return options ? write_options(skb, segment, options) : 0;
}

static __always_inline void swap_link_addresses(struct __sk_buff *skb)
{
	struct ethhdr link;
	__u8 source[ETH_ALEN];

	if (link_header_len != sizeof(link) || bpf_skb_load_bytes(skb, 0, &link, sizeof(link)))
		return;
	__builtin_memcpy(source, link.h_source, ETH_ALEN);
	__builtin_memcpy(link.h_source, link.h_dest, ETH_ALEN);
	__builtin_memcpy(link.h_dest, source, ETH_ALEN);
	bpf_skb_store_bytes(skb, 0, &link, sizeof(link), 0);
}

/* The IP header's checksum stays valid: source and destination are at most swapped. */
static __always_inline int write_addresses(struct __sk_buff *skb, const struct segment *segment,
					   const struct address *source, const struct address *destination)
{
	if (segment->ip.version == 6) {
		bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct ipv6hdr, saddr), source, 16, 0);
		return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct ipv6hdr, daddr), destination, 16, 0);
	}
	bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct iphdr, saddr), &source->word[3], 4, 0);
	return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct iphdr, daddr), &destination->word[3], 4, 0);
}

/* Turns a packet that was truncated to a TCP header into a RST. */
static __always_inline int write_rst(struct __sk_buff *skb, const struct segment *segment, struct tcphdr *tcp,
				     const struct address *source, const struct address *destination)
{
	tcp->doff = 5;
	tcp->rst = 1;
	__u64 sum = pseudo_header(source, destination, segment->ip.version, sizeof(*tcp));
	tcp->check = fold(bpf_csum_diff(0, 0, (__be32 *)tcp, sizeof(*tcp), sum));
	if (write_addresses(skb, segment, source, destination))
		return -1;
	return bpf_skb_store_bytes(skb, segment->ip.payload_at, tcp, sizeof(*tcp), BPF_F_INVALIDATE_HASH);
}

/* Answers an intact segment with a RST, and turns the segment into the RST that ends the kernel's request
 * socket, which expects `kernel_seq`. So the sender can use the same port again at once. */
GLOBAL int refuse(struct __sk_buff *skb, const struct segment *segment, __u32 kernel_seq)
{
	if (!segment)
		return DROP;
	__u32 end = segment->seq + segment->payload_len + !!(segment->flags & FIN) + !!(segment->flags & SYN);
	struct tcphdr answer = {
		.source = segment->destination_port,
		.dest = segment->source_port,
		.seq = segment->flags & ACK ? bpf_htonl(segment->ack) : 0,
		.ack_seq = bpf_htonl(end),
		.ack = 1,
	};
	struct tcphdr reset = {
		.source = segment->source_port,
		.dest = segment->destination_port,
		.seq = bpf_htonl(kernel_seq),
	};

	if (cut_to(skb, segment, sizeof(answer)))
		return DROP;
	swap_link_addresses(skb);
	if (write_rst(skb, segment, &answer, &segment->ip.destination, &segment->ip.source))
		return DROP;
	bpf_clone_redirect(skb, skb->ifindex, 0);
	swap_link_addresses(skb);
	if (write_rst(skb, segment, &reset, &segment->ip.source, &segment->ip.destination))
		return DROP;
	return PASS;
}
