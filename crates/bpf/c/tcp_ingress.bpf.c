/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* TCP on its way in: from a sender to a backend on this host. Nothing is cut out of packets; sequence numbers are
 * shifted, so that the kernel takes the header for data that it already has. ARCHITECTURE.md draws it.
 *
 *   SYN      shifted by K, the length that this sender's header is guessed to have
 *   bare ACK held back: accept() must not return before the client is known
 *   header   in part: delivered as old data, which the kernel acknowledges and drops
 *            whole (N bytes): becomes the bare ACK; once more, shifted like all that follow it
 *            (of the bare ACK the kernel makes a socket, and tcp_end of the embryo a flow)
 *   rest     shifted by delta = K - N: not at all, if the guess was right
 */
#include "header.h"
#include "hidden.h"
#include "maps.h"
#include "replies.h"
#include "segment.h"
#include "sockets.h"

/* A backend that speaks first shall not wait longer for a header that is optional. */
#define OPTIONAL_WAIT_NS 1000000000ULL

static __always_inline int refuse_for(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				      const struct flow_key *key, const struct embryo *embryo, enum counter reason)
{
	__u32 kernel_seq = embryo->isn + 1 + embryo->guess;

	count(port, reason);
	bpf_map_delete_elem(&tp_embryos, key);
	return refuse(skb, segment, kernel_seq);
}

/* Overwrites an option, as if this host did not know it. */
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

/* What a SYN may not carry: signatures over numbers that we would change (refused); what would bring data or a second
 * numbering before the header is off (declined). Nonzero: drop it. */
static __always_inline int inspect_options(struct __sk_buff *skb, const struct segment *segment, const struct port *port)
{
	struct options *options = read_options(skb, segment);

	if (!options)
		return 0;
	if (options->signature) {
		count(port, REFUSED_SIGNED);
		return -1;
	}
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

/* How long the header will be: as this sender's last one. Of its first ones we know nothing yet, and they may be many at once: most
 * senders write v2, with addresses of the family by which they come, and no TLVs. */
static __always_inline __u32 guess_of(const struct flow_key *key, __u8 version, __u32 rule)
{
	__u32 *last = bpf_map_lookup_elem(&tp_guesses, &key->sender);
	if (last)
		return *last;
	if (rule == RULE_OPTIONAL)
		return 0;
	return V2_FIXED + (version == 4 ? V2_INET : V2_INET6);
}

static __always_inline int has_socket(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 family = 0;
	enum socket_state state = find_socket(skb, segment, 0, &family);

	return state != NO_SOCKET && state != LISTENS;
}

/* What begins here is nothing of ours, so what has ended under its name must not translate it. */
static __always_inline int pass_by(const struct flow_key *key)
{
	/* Deleting takes a lock, even of nothing. */
	if (bpf_map_lookup_elem(&tp_ended, key))
		bpf_map_delete_elem(&tp_ended, key);
	return PASS;
}

static __always_inline int on_syn(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				  const struct flow_key *key)
{
	__u32 family = 0;
	struct embryo *again = bpf_map_lookup_elem(&tp_embryos, key);

	if (again && (again->isn != segment->seq || (again->stage != AWAITED && !has_socket(skb, segment)))) {
		/* Another connection, which must not be taken for that one. */
		bpf_map_delete_elem(&tp_embryos, key);
		again = 0;
	}
	if (port->draining && !again)
		return pass_by(key);
	__u32 rule = sender_rule(&key->sender);
	if (!rule && !again) {
		count(port, PASSED_NOT_A_SENDER);
		return pass_by(key);
	}
	if (!again && (!is_for_this_host(skb, &segment->ip, IPPROTO_TCP) || !find_socket(skb, segment, 0, &family))) {
		count(port, PASSED_NO_LISTENER);
		return pass_by(key);
	}
	if (segment->payload_len) {
		/* The sender asks again without data: that is how fast open falls back. */
		count(port, FASTOPEN_DECLINED);
		return DROP;
	}
	if (inspect_options(skb, segment, port))
		return DROP;

	if (again) {
		/* The first one was too much for the kernel. */
		if (!has_socket(skb, segment))
			again->born_ns = bpf_ktime_get_ns();
		shift_seq(skb, segment, again->guess);
		return PASS;
	}
	struct embryo embryo = {
		.born_ns = bpf_ktime_get_ns(),
		.isn = segment->seq,
		.guess = guess_of(key, segment->ip.version, rule),
	};
	if (bpf_map_update_elem(&tp_embryos, key, &embryo, BPF_ANY)) {
		count(port, FAILED);
		return DROP;
	}
	count(port, SYN_TRACKED);
	shift_seq(skb, segment, embryo.guess);
	return PASS;
}

/* From here on its header is off. It becomes a flow when the kernel makes a socket of it, which it need not do at once, or ever. */
static __always_inline void admit(const struct port *port, struct embryo *embryo, __u32 header_len, const struct flow *flow)
{
	embryo->have = header_len;
	embryo->flow = *flow;
	embryo->stage = ADMITTED;
	count(port, flow->delta ? DELTA_NONZERO : DELTA_ZERO);
}

/* No header, and none is needed: the sender is the client. */
static __always_inline int go_on_without(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					 const struct flow_key *key, struct embryo *embryo)
{
	struct flow flow = { .delta = embryo->guess };
	struct prefix sender = host(&key->sender);
	__u32 none = 0;

	if (is_denied(&sender))
		return refuse_for(skb, segment, port, key, embryo, REFUSED_DENIED);
	admit(port, embryo, 0, &flow);
	count(port, HEADER_ABSENT);
	bpf_map_update_elem(&tp_guesses, &key->sender, &none, BPF_ANY);
	shift_seq(skb, segment, flow.delta);
	return PASS;
}

static __always_inline int may_be_absent(const struct flow_key *key, const struct embryo *embryo)
{
	return embryo->have == 0 && sender_rule(&key->sender) == RULE_OPTIONAL;
}

/* An ACK without data, or the end. */
static __always_inline int on_bare(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				   const struct flow_key *key, struct embryo *embryo)
{
	int is_end = segment->flags & FIN;
	if (may_be_absent(key, embryo) && (is_end || bpf_ktime_get_ns() - embryo->born_ns >= OPTIONAL_WAIT_NS))
		return go_on_without(skb, segment, port, key, embryo);
	if (is_end)
		return refuse_for(skb, segment, port, key, embryo, REFUSED_NO_HEADER);
	count(port, HELD_ACK);
	return DROP;
}

/* Puts the `fresh` bytes at `from` behind what there is of the header's start. */
GLOBAL int gather(struct __sk_buff *skb, struct workbench *bench, struct embryo *embryo, __u32 from, __u32 fresh)
{
	if (!bench || !embryo)
		return -1;
	__builtin_memcpy(bench->start, embryo->start, HEADER_START);
	__u32 have = embryo->have;
	if (have >= HEADER_START)
		return 0;
	__u32 take = fresh < HEADER_START - have ? fresh : HEADER_START - have;
	__u32 len = take - 1;
	asm volatile("%0 &= 127" : "+r"(len)); /* for the verifier: 1 to 128 bytes, and never more than `fresh` holds */
	if (bpf_skb_load_bytes(skb, from, bench->fresh, len + 1))
		return -1;
	for (__u32 i = 0; i < HEADER_START; i++) {
		if (i >= take || have + i >= HEADER_START)
			break;
		bench->start[have + i] = bench->fresh[i];
	}
	__builtin_memcpy(embryo->start, bench->start, HEADER_START);
	return 0;
}

/* A part of a header: old data for the kernel, which acknowledges it at once. */
static __always_inline int on_part(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				   const struct flow_key *key, struct embryo *embryo, __u32 have)
{
	__u32 family = 0;

	if (segment->flags & FIN)
		return refuse_for(skb, segment, port, key, embryo, REFUSED_NO_HEADER);
	/* Behind a cookie there is nobody to acknowledge it. */
	if (find_socket(skb, segment, 0, &family) != HALF_OPEN)
		return refuse_for(skb, segment, port, key, embryo, REFUSED_SPLIT_COOKIE);
	count(port, HEADER_SPLIT);
	embryo->have = have;
	shift_seq(skb, segment, embryo->guess - have);
	return PASS;
}

/* The segment itself is lost by this; it comes again, as a copy or from the sender. */
static __always_inline int end_handshake(struct __sk_buff *skb, const struct segment *segment, const struct port *port, __u32 seq,
					 __be32 tsval)
{
	if (!become_bare_ack(skb, segment, seq, tsval))
		return PASS;
	count(port, FAILED);
	return DROP;
}

static __always_inline int on_whole(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				    const struct flow_key *key, struct embryo *embryo, const struct header *header,
				    enum verdict verdict)
{
	__u32 start = embryo->isn + 1 + embryo->guess;
	__be32 tsval = embryo->tsval;
	__u32 len = header->len;
	struct flow flow = { .delta = embryo->guess - len };
	enum counter refusal;
	__u32 family = 0;

	if (verdict == ADDRESSES) {
		flow.client = header->client;
		flow.client_port = header->client_port;
		flow.client_version = header->client_version;
		/* ::ffff:a.b.c.d is a.b.c.d, whichever way it was written. */
		if (flow.client.word[0] == 0 && flow.client.word[1] == 0 && flow.client.word[2] == MAPPED)
			flow.client_version = 4;
	}
	refusal = judge(flow.client_version ? &flow.client : &key->sender, flow.client_version);
	if (refusal)
		return refuse_for(skb, segment, port, key, embryo, refusal);
	enum socket_state state = find_socket(skb, segment, start, &family);
	if (state != HALF_OPEN && state != ANSWERS_COOKIE)
		return refuse_for(skb, segment, port, key, embryo, REFUSED_REDIRECTED);
	if (flow.client_version == 6 && family == AF_INET) {
		/* Programs break on an answer of another family than their socket's. */
		count(port, CLIENT_NOT_SHOWABLE);
		flow.client_version = 0;
	} else if (!flow.client_version) {
		count(port, NAMED_ITSELF);
	}

	count(port, header->is_v1 ? HEADER_V1 : HEADER_V2);
	admit(port, embryo, len, &flow);
	bpf_map_update_elem(&tp_guesses, &key->sender, &len, BPF_ANY);
	/* The copy comes in once more, behind this packet, and then belongs to a flow. Without it, the sender sends all of it again. */
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		count(port, FAILED);
	return end_handshake(skb, segment, port, start, tsval);
}

static __always_inline int on_data(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				   const struct flow_key *key, struct embryo *embryo)
{
	__u32 offset = segment->seq - (embryo->isn + 1);
	if (offset > embryo->have) {
		count(port, EARLY_SEGMENT);
		return DROP;
	}
	__u32 known = embryo->have - offset;
	if (known >= segment->payload_len) {
		/* Sent again: acknowledged again. */
		shift_seq(skb, segment, embryo->guess - embryo->have);
		return PASS;
	}
	struct workbench *bench = workbench();
	__u32 only = 0;
	struct settings *settings = bpf_map_lookup_elem(&tp_settings, &only);
	__u32 fresh = segment->payload_len - known;
	if (!bench || !settings || gather(skb, bench, embryo, segment->payload_at + known, fresh)) {
		count(port, FAILED);
		return DROP;
	}

	__u32 have = embryo->have + fresh;
	enum verdict verdict = read_header(bench, have < HEADER_START ? have : HEADER_START, STREAM);
	if (verdict == NOT_PROXY && may_be_absent(key, embryo))
		return go_on_without(skb, segment, port, key, embryo);
	if (verdict == NOT_PROXY)
		return refuse_for(skb, segment, port, key, embryo, REFUSED_NO_HEADER);
	if (verdict == MALFORMED)
		return refuse_for(skb, segment, port, key, embryo, REFUSED_MALFORMED);
	if (bench->header.len > settings->header_max)
		return refuse_for(skb, segment, port, key, embryo, REFUSED_TOO_LONG);
	if (verdict == NEED_MORE || have < bench->header.len)
		return on_part(skb, segment, port, key, embryo, have);
	return on_whole(skb, segment, port, key, embryo, &bench->header, verdict);
}

/* Its header is off, but its socket isn't there (or was not, when we looked): the accept queue was full. Then the kernel has dropped
 * the bare ACK, and takes any segment for one as soon as there is room; a cookie, only that which comes right after the SYN. */
static __always_inline int on_admitted(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				       const struct embryo *embryo)
{
	__u32 start = embryo->isn + 1 + embryo->guess;
	__u32 family = 0;

	if (find_socket(skb, segment, start, &family) == ANSWERS_COOKIE)
		return end_handshake(skb, segment, port, start, embryo->tsval);
	shift_seq(skb, segment, embryo->flow.delta);
	return PASS;
}

/* The kernel believes a RST that lies in its window, which has no scale yet (RFC 9293, 3.10.7.4), and forgets the connection. */
static __always_inline int is_in_window(const struct segment *segment, const struct embryo *embryo)
{
	return segment->seq - (embryo->isn + 1 + embryo->have) <= 0xffff;
}

static __always_inline int on_embryo(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				     const struct flow_key *key, struct embryo *embryo)
{
	if (segment->flags & (RST | SYN)) {
		shift_seq(skb, segment, embryo->guess - embryo->have);
		if (segment->flags & RST && is_in_window(segment, embryo))
			bpf_map_delete_elem(&tp_embryos, key);
		return PASS;
	}
	if (embryo->stage == HOMELESS)
		return refuse_for(skb, segment, port, key, embryo, REFUSED_FULL);
	if (embryo->stage == ADMITTED)
		return on_admitted(skb, segment, port, embryo);
	if (segment->payload_len == 0)
		return on_bare(skb, segment, port, key, embryo);
	return on_data(skb, segment, port, key, embryo);
}

/* We know nothing of it. What was open before us goes on; what isn't open must not become so without us. */
static __always_inline int on_stranger(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				       const struct flow_key *key)
{
	__u32 family = 0;

	if (segment->flags & RST || port->draining || !sender_rule(&key->sender))
		return PASS;
	switch (find_socket(skb, segment, segment->seq, &family)) {
	case HALF_OPEN:
	case ANSWERS_COOKIE:
		count(port, REFUSED_STRAY);
		return refuse(skb, segment, segment->seq);
	default:
		return PASS; /* open before us, or the kernel's to answer */
	}
}

/* A flow whose socket is gone, and we were not told: what begins here is another connection, with a header of its own. */
static __always_inline int is_left_behind(struct __sk_buff *skb, const struct segment *segment, const struct flow_key *key)
{
	if (has_socket(skb, segment))
		return 0;
	bpf_map_delete_elem(&tp_flows, key);
	return 1;
}

static __always_inline int has_listener(struct __sk_buff *skb, const struct hidden *hidden)
{
	struct segment segment = {
		.ip = hidden->ip,
		.source_port = hidden->source_port,
		.destination_port = hidden->destination_port,
	};
	__u32 family = 0;

	return find_socket(skb, &segment, 0, &family) != NO_SOCKET;
}

static __always_inline int on_unreadable(struct __sk_buff *skb)
{
	struct hidden hidden = {};

	enum finding found = find_hidden(skb, IPPROTO_TCP, &hidden);
	if (found == NOTHING_HIDDEN || !sender_rule(&hidden.ip.source) || !is_for_this_host(skb, &hidden.ip, IPPROTO_TCP))
		return PASS;
	if (found == TOO_LONG_TO_SAY)
		return refuse_too_long();
	struct port *port = bpf_map_lookup_elem(&tp_ports, &hidden.destination_port);
	if (!port || !has_listener(skb, &hidden))
		return PASS;
	count(port, REFUSED_FRAGMENT);
	return DROP;
}

SEC("classifier")
int tcp_ingress(struct __sk_buff *skb)
{
	struct segment segment = {};
	if (skb->pkt_type == 3 /* PACKET_OTHERHOST: a neighbour's or a macvlan's */)
		return PASS;
	if (read_segment(skb, &segment))
		return on_unreadable(skb);
	struct port *port = bpf_map_lookup_elem(&tp_ports, &segment.destination_port);
	if (!port)
		return PASS;
	struct flow_key key = {
		.sender = segment.ip.source,
		.local = segment.ip.destination,
		.sender_port = segment.source_port,
		.local_port = segment.destination_port,
	};
	int is_syn = (segment.flags & (SYN | ACK)) == SYN;
	struct flow *flow = bpf_map_lookup_elem(&tp_flows, &key);
	if (flow && !(is_syn && is_left_behind(skb, &segment, &key))) {
		shift_seq(skb, &segment, flow->delta);
		return PASS;
	}
	if (is_syn)
		return on_syn(skb, &segment, port, &key);
	struct embryo *embryo = bpf_map_lookup_elem(&tp_embryos, &key);
	if (embryo)
		return on_embryo(skb, &segment, port, &key, embryo);
	/* It may have become one since we looked; after that it ended. */
	flow = bpf_map_lookup_elem(&tp_flows, &key);
	if (!flow)
		flow = bpf_map_lookup_elem(&tp_ended, &key);
	if (flow) {
		shift_seq(skb, &segment, flow->delta);
		return PASS;
	}
	return on_stranger(skb, &segment, port, &key);
}

char _license[] SEC("license") = "Dual MIT/GPL";
