/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* TCP on its way out: from a backend on this host to a sender. Acknowledgements are put into the sender's
 * numbers. */
#include "attach/maps.h"
#include "attach/refusals.h"
#include "attach/names.h"
#include "lib/tcp_opts.h"
#include "attach/ports.h"

/* The ACK is held back until the header has arrived. Meanwhile the kernel repeats its SYN-ACK. The first
 * repetition after the time-out becomes the RST that ends the wait. */
static __always_inline int give_up(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 at = offsetof(struct tcphdr, ack_seq) + 4; /* data offset, flags, window */
	__be32 word;
	if (bpf_skb_load_bytes(skb, segment->ip.payload_at + at, &word, sizeof(word)))
		return PASS;
	__u32 old = bpf_ntohl(word);
	set_word(skb, segment, at, old, (old & 0xff00ffff) | (RST | ACK) << 16);
	/* The SYN uses one number. */
	set_word(skb, segment, offsetof(struct tcphdr, seq), segment->seq, segment->seq + 1);
	return PASS;
}

/* Read at fixed places: the compiler must not add to the socket's pointer. */
#define WORD(sk, field) ({ __u32 word = (sk)->field; asm volatile("" : "+r"(word)); word; })

/* The socket that answers has this packet's own address and port: nothing has translated them. */
static __always_inline int is_ours(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *sk = skb->sk;
	const __be32 *source = segment->ip.source.word;

	if (!sk || WORD(sk, src_port) != bpf_ntohs(segment->source_port))
		return 0;
	if (segment->ip.version == 4)
		return WORD(sk, src_ip4) == source[3];
	return WORD(sk, src_ip6[0]) == source[0] && WORD(sk, src_ip6[1]) == source[1] &&
	       WORD(sk, src_ip6[2]) == source[2] && WORD(sk, src_ip6[3]) == source[3];
}

/* Notes what the sender will have to acknowledge and echo. From here on the pending connection counts. */
static __always_inline void note_answer(struct __sk_buff *skb, const struct segment *segment,
					struct pending *pending)
{
	struct timestamps timestamps;
	struct options *options = read_options(skb, segment);

	pending->our_isn = segment->seq;
	pending->is_by_cookie = !skb->sk; /* tcp_make_synack: only without a cookie a socket owns the packet */
	pending->is_ours = is_ours(skb, segment);
	pending->agreed = (segment->flags & (ECE | CWR)) == ECE ? CONGESTION_MARKS : 0;
	if (options && options->window_scale) {
		pending->agreed |= WINDOW_SCALE;
		pending->rcv_wscale = window_scale(options);
	}
	if (options && options->sack_permitted)
		pending->agreed |= SELECTIVE_ACKS;
	if (!read_timestamps(options, &timestamps)) {
		pending->clock_offset = timestamps.value - milliseconds();
		if (!pending->is_answered || pending->is_by_cookie)
			pending->tsval_first = timestamps.value;
		pending->tsval_synack = timestamps.value;
		pending->tsval_newest = timestamps.value;
		pending->has_timestamps = 1;
	}
	pending->is_answered = 1;
}

static __always_inline int on_syn_ack(struct __sk_buff *skb, const struct segment *segment,
				      const struct port *port, const struct flow_key *key,
				      struct pending *pending)
{
	struct terms *terms = terms_of(port);

	/* The answer to a SYN that was not shifted; a cookie may answer any SYN. */
	if (segment->ack != pending->isn + 1 + pending->guess && skb->sk)
		return PASS;
	shift_ack(skb, segment, pending->guess);
	if (terms && bpf_ktime_get_ns() - pending->born_ns >= terms->header_timeout_ns) {
		count(port, REFUSED_TIMEOUT);
		tell(key, IPPROTO_TCP, REFUSED_TIMEOUT, 0);
		bpf_map_delete_elem(&tp_pending, key);
		return give_up(skb, segment);
	}
	note_answer(skb, segment, pending);
	return PASS;
}

static __always_inline int shift_sack(struct __sk_buff *skb, const struct segment *segment, __s32 delta)
{
	struct timestamps timestamps;

	if (!read_only_timestamps(skb, segment, &timestamps))
		return 0;
	struct options *options = read_options(skb, segment);
	if (!options || !options->sack)
		return 0;
	__s64 sum = begin_options(options);
	shift_sack_blocks(options, -delta);
	return finish_options(skb, segment, options, sum);
}

static __noinline int shift_all(struct __sk_buff *skb, const struct segment *segment, __s32 delta)
{
	shift_ack(skb, segment, delta);
	return shift_sack(skb, segment, delta);
}

/* Translates once: a device above another one of the namespace (macvlan, bridge) hands the packet down, and
 * it comes by here again. The mark is the packet's hash, a secret number of its ports: no device, queue or
 * filter on the way changes it, each transmission of TCP starts with its own, and a flow still has one for
 * all its packets. Nonzero: it has been here. */
static __always_inline int was_here(struct __sk_buff *skb, __be16 source, __be16 destination)
{
	struct settings *settings = settings_here();

	if (!settings)
		return 0;
	__u32 mark = ((__u32)source << 16 | destination) ^ settings->validated;
	mark *= 0x9e3779b1; /* odd, so no two pairs share it; its upper bits choose queues */
	if (skb->hash == mark)
		return 1;
	bpf_set_hash(skb, mark);
	return 0;
}

/* The same for nearly all segments of a socket, read where they stand. Nonzero: read it as a whole. */
static __always_inline int shift_plain(struct __sk_buff *skb, __s32 delta)
{
	struct {
		struct tcphdr tcp;
		__be32 option;
	} *plain;
	struct segment segment; /* as far as set_word() reads it */
	__u8 protocol;

	plain = behind_ip(skb, &segment.ip.payload_at, &protocol);
	if (!plain || protocol != IPPROTO_TCP || is_of_vlan(skb) ||
	    (void *)(plain + 1) > (void *)(long)skb->data_end)
		return -1;
	if (plain->tcp.doff != 8 || plain->option != ONLY_TIMESTAMPS || !plain->tcp.ack)
		return -1;
	segment.ack = bpf_ntohl(plain->tcp.ack_seq);
	if (!was_here(skb, plain->tcp.source, plain->tcp.dest))
		shift_ack(skb, &segment, delta);
	return 0;
}

/* The kernel took the part for old data, so it echoes the SYN's timestamp. The sender would take the time
 * since its SYN for a round trip, and would repeat what is lost only after three times as long. RFC
 * 7323, 4.3: echo the newest segment that was in order. */
static __always_inline void echo_newest(struct __sk_buff *skb, const struct segment *segment,
					struct options *options, const struct timestamps *timestamps,
					__u32 newest)
{
	__u32 at = options->timestamps + TIMESTAMP_ECHO;

	if (newest && at <= OPTIONS_END - 4)
		set_word(skb, segment, sizeof(struct tcphdr) - OPTIONS_AT + at, timestamps->echo, newest);
}

/* The acknowledgement of a part of the header; the sender will echo its timestamp. */
static __always_inline int on_handshake_ack(struct __sk_buff *skb, const struct segment *segment,
					    struct pending *pending)
{
	struct timestamps timestamps;
	struct options *options = read_options(skb, segment);

	if (!read_timestamps(options, &timestamps)) {
		pending->tsval_newest = timestamps.value;
		echo_newest(skb, segment, options, &timestamps, pending->ts_recent);
	}
	return shift_all(skb, segment, pending->guess - pending->have);
}

/* The sending socket stores its flow's delta, or has a port that is not attached: then the packet need not be
 * parsed. SYN-ACKs, answers from TIME_WAIT and forwarded packets have no such socket. */
enum said { NOTHING, NOT_OURS, OURS };

static __always_inline enum said ask_socket(struct __sk_buff *skb, __s32 *delta)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return NOTHING;
	sk = bpf_sk_fullsock(sk);
	if (!sk || sk->type != SOCK_STREAM || sk->protocol != IPPROTO_TCP)
		return NOTHING;
	struct name *name = bpf_sk_storage_get(&tp_names, sk, 0, 0);
	if (name) {
		*delta = name->delta;
		return OURS;
	}
	return is_other_port(bpf_htons(sk->src_port)) ? NOT_OURS : NOTHING;
}

SEC("classifier")
int tcp_egress(struct __sk_buff *skb)
{
	__s32 delta = 0;
	enum said said = ask_socket(skb, &delta);
	if (said == NOT_OURS || (said == OURS && !delta))
		return PASS; /* unread */
	if (said == OURS && !shift_plain(skb, delta))
		return PASS;
	struct segment segment = {};
	if (read_segment(skb, &segment) || !(segment.flags & ACK))
		return PASS;
	if (said == OURS) {
		if (!was_here(skb, segment.source_port, segment.destination_port))
			shift_all(skb, &segment, delta);
		return PASS;
	}
	if (is_other_port(segment.source_port))
		return PASS;
	struct port *port = bpf_map_lookup_elem(&tp_ports, &segment.source_port);
	if (!port || was_here(skb, segment.source_port, segment.destination_port))
		return PASS;
	struct flow_key key = key_out(&segment);
	struct flow *flow = bpf_map_lookup_elem(&tp_flows, &key);
	if (flow) {
		if (flow->delta)
			shift_all(skb, &segment, flow->delta);
		return PASS;
	}
	struct pending *pending = bpf_map_lookup_elem(&tp_pending, &key);
	if (pending && segment.flags & SYN && pending->stage == AWAITED)
		return on_syn_ack(skb, &segment, port, &key, pending);
	if (pending && pending->is_answered) {
		on_handshake_ack(skb, &segment, pending);
		return PASS;
	}
	/* The pending connection may have become a flow since the lookup, and the flow may have ended. */
	flow = bpf_map_lookup_elem(&tp_flows, &key) ?: bpf_map_lookup_elem(&tp_ended, &key);
	if (flow && flow->delta)
		shift_all(skb, &segment, flow->delta);
	return PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
