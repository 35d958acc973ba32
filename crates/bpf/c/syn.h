/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* SYNs: those that start a connection, and those that change nothing because one is pending. */
#pragma once
#include "header.h"
#include "verdicts.h"

/* Overwrites an option, so that this host seems not to support it. */
GLOBAL int decline(struct __sk_buff *skb, const struct segment *segment, struct options *options, __u32 at)
{
	if (!segment || !options)
		return -1;
	__u32 len = option_len(options, at);
	__s64 sum = bpf_csum_diff((__be32 *)options->bytes, sizeof(options->bytes), 0, 0, 0);

	for (__u32 i = 0; i < OPTIONS_END - OPTIONS_AT; i++) {
		if (i >= len || at + i >= OPTIONS_END)
			break;
		*option_byte(options, at + i) = OPTION_NOP;
	}
	sum = bpf_csum_diff(0, 0, (__be32 *)options->bytes, sizeof(options->bytes), sum);
	bpf_l4_csum_replace(skb, segment->ip.payload_at + offsetof(struct tcphdr, check), 0, sum, 0);
	return write_options(skb, segment, options);
}

/* Refuses signatures (they sign the numbers that are shifted), and removes options that would bring data or a
 * second numbering before the header is removed. Nonzero: drop the SYN. */
static __always_inline int inspect_options(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					   __u32 *tsval)
{
	struct options *options = read_options(skb, segment);
	struct timestamps timestamps;

	if (!options)
		return 0;
	if (options->signature) {
		count(port, REFUSED_SIGNED);
		return -1;
	}
	if (!read_timestamps(options, &timestamps))
		*tsval = timestamps.value;
	if (options->mptcp) {
		count(port, MPTCP_DECLINED);
		decline(skb, segment, options, options->mptcp);
	}
	if (options->fastopen) {
		count(port, FASTOPEN_DECLINED);
		decline(skb, segment, options, options->fastopen);
	}
	return 0;
}

/* Guesses the header's length: that of this sender's last one. A sender's first headers may arrive at the same
 * time. Most senders write v2 without TLVs, with addresses of the family of their connection. */
static __always_inline __u32 guess_of(const struct flow_key *key, __u8 version, __u32 rule)
{
	__u32 *last = bpf_map_lookup_elem(&tp_guesses, &key->sender);
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

/* A handshake with these addresses and ports is pending, and the kernel keeps it. After a cookie the kernel
 * keeps nothing: then it is pending for as long as the header may take. */
static __always_inline int is_pending(const struct embryo *embryo, enum socket_state state)
{
	__u32 only = 0;

	if (state == HALF_OPEN)
		return 1;
	if (state != LISTENS || !embryo->is_answered || !embryo->is_by_cookie)
		return 0;
	struct settings *settings = bpf_map_lookup_elem(&tp_settings, &only);
	return settings && bpf_ktime_get_ns() - embryo->born_ns < settings->header_timeout_ns;
}

/* Another SYN must not replace a pending one: otherwise anybody could end handshakes. The kernel gets a SYN
 * just before its window and answers it with an ACK. A sender that has really started again resets the old
 * handshake because of that ACK. */
static __always_inline int on_other_syn(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					const struct embryo *embryo)
{
	count(port, NOT_TAKEN);
	if (segment->payload_len)
		return DROP;
	shift_seq(skb, segment, embryo->isn + embryo->guess - 1 - segment->seq);
	return go_on(skb);
}

static __always_inline int on_pending_syn(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					  const struct embryo *embryo)
{
	__u32 tsval = 0;

	if (segment->flags & (FIN | RST))
		return drop(port, NOT_TAKEN);
	if (segment->seq != embryo->isn && !embryo->is_by_cookie)
		return on_other_syn(skb, segment, port, embryo);
	if (segment->payload_len)
		return drop(port, FASTOPEN_DECLINED);
	if (inspect_options(skb, segment, port, &tsval))
		return DROP;
	/* Whichever SYN a cookie answers, all are shifted by the same number: the ACK will show which one it was. */
	shift_seq(skb, segment, embryo->guess);
	return go_on(skb);
}

static __always_inline int on_new_syn(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				      const struct flow_key *key)
{
	__u32 tsval = 0, family = 0;
	__u32 rule = sender_rule(&key->sender);

	if (port->state == DRAINING || (port->state == REFUSING && rule != RULE_REQUIRE))
		return pass_by(key);
	if (!rule) {
		count(port, PASSED_NOT_A_SENDER);
		return pass_by(key);
	}
	if (!is_for_this_host(skb, &segment->ip, IPPROTO_TCP) || !find_socket(skb, segment, 0, &family)) {
		count(port, PASSED_NO_LISTENER);
		return pass_by(key);
	}
	/* A listener ignores a SYN with RST or FIN (tcp_rcv_state_process). */
	if (segment->flags & (FIN | RST))
		return drop(port, NOT_TAKEN);
	if (!is_intact(skb, segment))
		return drop(port, REFUSED_DAMAGED);
	if (port->state == REFUSING) {
		count(port, REFUSED_DETACHING);
		return refuse(skb, segment, segment->seq);
	}
	/* The sender retries without data: that is the fallback of fast open. */
	if (segment->payload_len)
		return drop(port, FASTOPEN_DECLINED);
	if (inspect_options(skb, segment, port, &tsval))
		return DROP;
	struct workbench *bench = workbench();
	if (!bench)
		return drop(port, FAILED);
	struct embryo *embryo = &bench->embryo; /* too large for the stack */
	__builtin_memset(embryo, 0, sizeof(*embryo));
	embryo->born_ns = bpf_ktime_get_ns();
	embryo->isn = segment->seq;
	embryo->guess = guess_of(key, segment->ip.version, rule);
	embryo->ts_recent = tsval;
	embryo->device = skb->ingress_ifindex;
	if (bpf_map_update_elem(&tp_embryos, key, embryo, BPF_ANY))
		return drop(port, FAILED);
	count(port, SYN_TRACKED);
	shift_seq(skb, segment, embryo->guess);
	return go_on(skb);
}

static __always_inline int on_syn(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				  const struct flow_key *key)
{
	__u32 family = 0;
	struct embryo *embryo = bpf_map_lookup_elem(&tp_embryos, key);

	if (!embryo)
		return on_new_syn(skb, segment, port, key);
	enum socket_state state = find_socket(skb, segment, 0, &family);
	/* Its socket exists and is about to become a flow, or to be refused for lack of room. */
	if (state == OPEN && embryo->stage != AWAITED)
		return drop(port, NOT_TAKEN);
	if (is_pending(embryo, state))
		return on_pending_syn(skb, segment, port, embryo);
	bpf_map_delete_elem(&tp_embryos, key);
	return on_new_syn(skb, segment, port, key);
}
