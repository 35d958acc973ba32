/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* UDP flows that have left user space.
 *
 *   sender ──▶ udp_in: header off, client's address, on to the backend     backend ──▶ udp_in: back again
 *   our sockets ──▶ udp_out: learns the device by which datagrams leave to each end
 *
 * A datagram passes to user space as long as the device is not learnt, and always if anything about it is not
 * as usual. docs/internals/splice.md tells why nothing can reach the backend that user space would refuse.
 */
#include "deliver.h"

#define SOCK_DGRAM 2

/* The kernel may use an element of the table again for another key while it is read here. So its value is
 * read once, and the caller compares the flow with the datagram. */
static __always_inline struct offloaded *flow_of(const struct flow_key *key, enum side *side)
{
	const volatile place_bits *found = bpf_map_lookup_elem(&tu_keys, key);

	if (!found)
		return 0;
	place_bits bits = *found;

	*side = bits & 1;
	return flow_at(bits);
}

/* The flow of this datagram; NULL: none. */
static __always_inline struct offloaded *find_flow(struct __sk_buff *skb, struct scratch *scratch,
						   enum side *side)
{
	struct flow_key key;

	key_of(&scratch->from, &key);
	struct offloaded *flow = flow_of(&key, side);

	/* A sender's key with the address of a client that is somebody's sender, too: the header decides. */
	if (flow && !(*side == SENDER && flow->header_len))
		return is_same_key(&flow->ends[*side & 1].key, &key) ? flow : 0;
	struct header *header = &scratch->header;

	if (read_header(skb, &scratch->from, header))
		return 0;
	flow = flow_of(&header->key, side);
	if (!flow || *side != SENDER || flow->header_len != header->len)
		return 0;
	const struct flow_key *sender = &flow->ends[SENDER].key;

	if (!is_same_address(&sender->remote, &key.remote) || !is_same_address(&sender->local, &key.local) ||
	    sender->local_port != key.local_port)
		return 0;
	for (__u32 i = 0; i < HEADER_WORDS; i++)
		if (flow->header[i] != header->words[i])
			return 0;
	return flow;
}

/* Read once: truepeer may clear it meanwhile, so that it is learnt again. */
static __always_inline __u32 device_of(const struct end *end)
{
	return *(const volatile __u32 *)&end->device;
}

/* Addresses and ports as the other end gets them. */
static __always_inline void turn(struct scratch *scratch, const struct flow_key *key)
{
	struct datagram *to = &scratch->to;

	*to = scratch->from;
	to->ip.source = key->local;
	to->ip.destination = key->remote;
	to->source_port = key->local_port;
	to->destination_port = key->remote_port;
}

/* The listener's answers to this sender have left by it. That they did, and that its datagrams come in as
 * the flow's key says, shows that nothing translates addresses between this program and the sockets. */
static __always_inline void find_device(struct offloaded *flow, const struct datagram *from)
{
	struct pair pair = { .local = from->ip.destination, .remote = from->ip.source };
	__u32 *device = bpf_map_lookup_elem(&tu_senders, &pair);

	if (device)
		flow->ends[SENDER].device = *device;
}

/* gso_segs is 0 in aggregates of tap and virtio. */
static __always_inline __u32 datagrams_in(struct __sk_buff *skb, __u32 len)
{
	__u32 size = skb->gso_size;

	return size ? (len + size - 1) / size : 1;
}

/* Each datagram of this aggregate has or needs a header, so user space gets it. A later one that comes alone
 * overtakes it: user space takes back flows that have many. */
static __always_inline int pass_merged(struct offloaded *flow)
{
	__sync_fetch_and_add(&flow->merged, 1);
	return PASS;
}

static __always_inline int on_sender(struct __sk_buff *skb, struct scratch *scratch, struct offloaded *flow)
{
	const struct datagram *from = &scratch->from;
	struct end *sender = &flow->ends[SENDER], *backend = &flow->ends[BACKEND];
	struct datagram *to = &scratch->to;
	__u32 header_len = flow->header_len, device = device_of(backend), change = 0;

	/* rp_filter would drop it, or user space learn of a new way. */
	if (skb->ifindex != flow->sender_by)
		return PASS;
	if (!device_of(sender))
		find_device(flow, from);
	if (header_len && skb->gso_size)
		return pass_merged(flow);
	if (!device || !is_datagram_intact(skb, from))
		return PASS;
	turn(scratch, &backend->key);
	if (header_len) {
		to->payload_len -= header_len;
		to->ip.len = ip_len_of(to);
	}
	if (is_too_long(skb, to, backend->mtu) || (header_len && skb->len > LONGEST))
		return PASS;
	/* Answers go to the port that the sender used last. */
	if (sender->key.remote_port != from->source_port)
		sender->key.remote_port = from->source_port;
	__u32 datagrams = datagrams_in(skb, to->payload_len), bytes = to->payload_len;

	if (header_len && take_out(skb, from, header_len, &change))
		return DROP;
	if (write_headers(skb, from, to, backend, change))
		return DROP;
	count_moved(&flow->moved[SENDER], datagrams, bytes);
	return send_on(skb, device);
}

static __always_inline int on_backend(struct __sk_buff *skb, struct scratch *scratch, struct offloaded *flow)
{
	const struct datagram *from = &scratch->from;
	struct end *sender = &flow->ends[SENDER];
	struct datagram *to = &scratch->to;
	__u32 device = device_of(sender), change = 0;

	if (!device || skb->ifindex != device_of(&flow->ends[BACKEND]))
		return PASS;
	if (flow->is_spp && skb->gso_size)
		return pass_merged(flow);
	if (!is_datagram_intact(skb, from))
		return PASS;
	turn(scratch, &sender->key);
	if (flow->is_spp) {
		to->payload_len += SPP_LEN;
		to->ip.len = ip_len_of(to);
	}
	if (is_too_long(skb, to, sender->mtu) || (flow->is_spp && skb->len > LONGEST))
		return PASS;
	__u32 datagrams = datagrams_in(skb, from->payload_len), bytes = from->payload_len;

	if (flow->is_spp && put_header(skb, from, flow, &change))
		return DROP;
	if (write_headers(skb, from, to, sender, change))
		return DROP;
	count_moved(&flow->moved[BACKEND], datagrams, bytes);
	return send_on(skb, device);
}

static __always_inline int may_be_udp(struct __sk_buff *skb)
{
	__u8 protocol;
	__u32 at;

	return !behind_ip(skb, &at, &protocol) || protocol == IPPROTO_UDP;
}

SEC("classifier")
int udp_in(struct __sk_buff *skb)
{
	struct scratch *scratch = ONLY_ENTRY(scratches);
	enum side side = SENDER;

	if (!scratch || skb->pkt_type != 0 /* PACKET_HOST */)
		return PASS;
	if (is_on_lap(skb))
		return end_lap(skb);
	if (!may_be_udp(skb) || read_datagram(skb, &scratch->from) || !is_usual(&scratch->from))
		return PASS;
	struct offloaded *flow = find_flow(skb, scratch, &side);

	if (!flow || !flow->is_here)
		return PASS;
	return side == SENDER ? on_sender(skb, scratch, flow) : on_backend(skb, scratch, flow);
}

/* An upstream socket's datagram, as it leaves this host. If its addresses were translated on the way, the
 * flow stays in user space. */
static __always_inline void learn_backend(struct __sk_buff *skb, const struct datagram *datagram, __u32 place)
{
	struct offloaded *flow = bpf_map_lookup_elem(&tu_flows, &place);
	struct flow_key key = {
		.remote = datagram->ip.destination,
		.local = datagram->ip.source,
		.remote_port = datagram->destination_port,
		.local_port = datagram->source_port,
	};

	/* Below a device that stands on another one it comes by once more: the first one is the route's. */
	if (flow && flow->is_here && !flow->ends[BACKEND].device && is_same_key(&flow->ends[BACKEND].key, &key))
		flow->ends[BACKEND].device = skb->ifindex;
}

static __always_inline void learn_sender(struct __sk_buff *skb, const struct datagram *datagram)
{
	struct pair pair = { .local = datagram->ip.source, .remote = datagram->ip.destination };
	__u32 device = skb->ifindex;

	if (!bpf_map_lookup_elem(&tu_senders, &pair))
		bpf_map_update_elem(&tu_senders, &pair, &device, BPF_NOEXIST);
}

SEC("classifier")
int udp_out(struct __sk_buff *skb)
{
	struct scratch *scratch = ONLY_ENTRY(scratches);
	struct bpf_sock *sk = skb->sk;

	if (!scratch || !sk || skb->ingress_ifindex)
		return PASS;
	sk = bpf_sk_fullsock(sk);
	if (!sk || sk->type != SOCK_DGRAM)
		return PASS;
	__u32 *place = bpf_sk_storage_get(&tu_sockets, sk, 0, 0), device = skb->ifindex;

	if (!place || bpf_map_lookup_elem(&tu_ports, &device))
		return PASS;
	if (read_datagram(skb, &scratch->from) || scratch->from.ip.is_fragment)
		return PASS;
	if (*place == LISTENER)
		learn_sender(skb, &scratch->from);
	else
		learn_backend(skb, &scratch->from, *place);
	return PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
