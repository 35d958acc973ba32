/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* SYNs: those that start a connection, and those that change nothing because one is pending. */
#pragma once
#include "attach/restart.h"
#include "proxy_header/header.h"
#include "attach/drop.h"

/* Overwrites an option, so that this host seems not to support it. */
GLOBAL int decline(struct __sk_buff *skb, const struct segment *segment, struct options *options, __u32 at)
{
	if (!segment || !options)
		return -1;
	__u32 len = option_len(options, at);
	__s64 sum = begin_options(options);

	for (__u32 i = 0; i < OPTIONS_END - OPTIONS_AT; i++) {
		if (i >= len || at + i >= OPTIONS_END)
			break;
		*option_byte(options, at + i) = OPTION_NOP;
	}
	return finish_options(skb, segment, options, sum);
}

/* The options that a SYN offers. */
struct offer {
	__u32 tsval;
	__u16 mss;
	__u8 window_scale;
};

/* Refuses signatures (they sign the numbers that we shift), and declines what would bring data or a second
 * numbering before the header is off. Nonzero: drop the SYN. */
static __always_inline int inspect_options(struct __sk_buff *skb, struct incoming *in, struct offer *offer)
{
	struct options *options = read_options(skb, &in->segment);
	struct timestamps timestamps;

	offer->mss = DEFAULT_MSS;
	if (!options)
		return 0;
	offer->mss = maximum_segment_size(options);
	offer->window_scale = options->window_scale ? window_scale(options) : 0;
	if (options->signature) {
		count(in->port, REFUSED_SIGNED);
		return -1;
	}
	if (!read_timestamps(options, &timestamps))
		offer->tsval = timestamps.value;
	if (options->mptcp) {
		count(in->port, MPTCP_DECLINED);
		decline(skb, &in->segment, options, options->mptcp);
	}
	if (options->fastopen) {
		count(in->port, FASTOPEN_DECLINED);
		decline(skb, &in->segment, options, options->fastopen);
	}
	return 0;
}

/* Guesses the header's length: that of this sender's last one. A sender's first headers may arrive at the
 * same time. Most senders write v2 without TLVs, with addresses of the family of their connection. */
static __always_inline __u32 guess_of(const struct flow_key *key, __u8 version, __u32 rule)
{
	__u32 *last = bpf_map_lookup_elem(&tp_guesses, &key->remote);
	if (last)
		return *last;
	if (rule == RULE_OPTIONAL)
		return 0;
	return V2_FIXED + (version == 4 ? V2_INET : V2_INET6);
}

/* Leaves a connection alone. Deletes a stale TIME_WAIT entry for this tuple, or its packets would be
 * translated. */
static __always_inline int pass_by(const struct flow_key *key)
{
	/* Deleting takes a lock, even if there is no entry. */
	if (bpf_map_lookup_elem(&tp_ended, key))
		bpf_map_delete_elem(&tp_ended, key);
	return PASS;
}

/* A handshake with these addresses and ports is pending, and the kernel keeps it. After a cookie it keeps
 * nothing, and it may have given the handshake up: then for as long as the header may take. */
static __always_inline int is_pending(const struct port *port, const struct pending *pending,
				      enum socket_state state)
{
	if (state == HALF_OPEN)
		return 1;
	if (state != LISTENS || !pending->is_answered)
		return 0;
	if (pending->is_by_cookie)
		return !is_out_of_time(port, pending);
	return pending->is_proved && !why_not_again(port, pending);
}

/* Another SYN must not replace a pending one: otherwise anybody could end handshakes. The kernel gets a SYN
 * just before its window and answers it with an ACK. A sender that has really started again resets the old
 * handshake because of that ACK. */
static __always_inline int on_other_syn(struct __sk_buff *skb, struct incoming *in)
{
	count(in->port, NOT_TAKEN);
	if (in->segment.payload_len)
		return DROP;
	shift_seq(skb, &in->segment, in->pending->isn + in->pending->guess - 1 - in->segment.seq);
	return go_on(skb);
}

/* What an open socket answers to a SYN (RFC 5961, 4): where the connection stands. A sender that has begun
 * anew resets it by that, with the exact number, and asks again. */
static __always_inline int challenge(struct __sk_buff *skb, struct incoming *in)
{
	count(in->port, NOT_TAKEN);
	if (is_intact(skb, &in->segment))
		say_where(skb, &in->segment, in->pending);
	return DROP;
}

static __always_inline int on_pending_syn(struct __sk_buff *skb, struct incoming *in, enum socket_state state)
{
	struct offer offer = {};

	if (in->segment.flags & (FIN | RST))
		return drop(in->port, NOT_TAKEN);
	/* The sender holds an open connection, and the kernel nothing: of this SYN it would make another
	 * handshake. */
	if (state == LISTENS && in->pending->is_proved)
		return challenge(skb, in);
	if (in->segment.seq != in->pending->isn && !in->pending->is_by_cookie)
		return on_other_syn(skb, in);
	if (in->segment.payload_len)
		return drop(in->port, FASTOPEN_DECLINED);
	if (inspect_options(skb, in, &offer))
		return DROP;
	/* Whichever SYN a cookie answers, all are shifted by the same number: the ACK will show which one it was. */
	shift_seq(skb, &in->segment, in->pending->guess);
	return go_on(skb);
}

static __always_inline int on_new_syn(struct __sk_buff *skb, struct incoming *in)
{
	struct offer offer = {};
	__u32 family = 0;
	__u32 rule = sender_rule(&in->key.remote, in->port->group);

	if (in->port->state == DRAINING || (in->port->state == REFUSING && rule != RULE_REQUIRE))
		return pass_by(&in->key);
	if (!rule) {
		count(in->port, PASSED_NOT_A_SENDER);
		return pass_by(&in->key);
	}
	if (!is_for_this_host(skb, &in->segment.ip, IPPROTO_TCP) || !find_socket(skb, &in->segment, 0, &family)) {
		count(in->port, PASSED_NO_LISTENER);
		return pass_by(&in->key);
	}
	/* A listener ignores a SYN with RST or FIN (tcp_rcv_state_process). */
	if (in->segment.flags & (FIN | RST))
		return drop(in->port, NOT_TAKEN);
	if (!is_intact(skb, &in->segment))
		return drop(in->port, REFUSED_DAMAGED);
	if (in->port->state == PAUSED)
		return drop(in->port, NOT_TAKEN);
	if (in->port->state == REFUSING) {
		count(in->port, REFUSED_DETACHING);
		tell(&in->key, IPPROTO_TCP, REFUSED_DETACHING, 0);
		return refuse(skb, &in->segment, in->segment.seq, 0);
	}
	/* The sender retries without data: that is the fallback of fast open. */
	if (in->segment.payload_len)
		return drop(in->port, FASTOPEN_DECLINED);
	if (inspect_options(skb, in, &offer)) {
		tell(&in->key, IPPROTO_TCP, REFUSED_SIGNED, 0);
		return DROP;
	}
	struct header_scratch *scratch = header_scratch();
	if (!scratch)
		return drop(in->port, FAILED);
	struct pending *pending = &scratch->pending; /* too large for the stack */
	__builtin_memset(pending, 0, sizeof(*pending));
	pending->born_ns = bpf_ktime_get_ns();
	pending->isn = in->segment.seq;
	pending->guess = guess_of(&in->key, in->segment.ip.version, rule);
	pending->ts_recent = offer.tsval;
	pending->mss = offer.mss;
	pending->snd_wscale = offer.window_scale;
	pending->device = skb->ingress_ifindex;
	if (bpf_map_update_elem(&tp_pending, &in->key, pending, BPF_ANY))
		return drop(in->port, FAILED);
	count(in->port, SYN_TRACKED);
	shift_seq(skb, &in->segment, pending->guess);
	return go_on(skb);
}

static __always_inline int on_syn(struct __sk_buff *skb, struct incoming *in)
{
	__u32 family = 0;
	in->pending = bpf_map_lookup_elem(&tp_pending, &in->key);
	if (!in->pending)
		return on_new_syn(skb, in);
	enum socket_state state = find_socket(skb, &in->segment, 0, &family);
	/* Its socket exists and is about to become a flow, or to be refused for lack of room. */
	if (state == OPEN && in->pending->stage != AWAITED)
		return drop(in->port, NOT_TAKEN);
	if (is_pending(in->port, in->pending, state))
		return on_pending_syn(skb, in, state);
	bpf_map_delete_elem(&tp_pending, &in->key);
	return on_new_syn(skb, in);
}
