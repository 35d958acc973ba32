/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* UDP on its way in: from a sender to a backend on this host. The header is taken out, the client becomes the source, and
 * the flow is remembered for the answers. ARCHITECTURE.md draws it. */
#include "header.h"
#include "hidden.h"
#include "udp_maps.h"
#include "datagram.h"
#include "here.h"
#include "parcel.h"

/* As the backend shall see it, and what is kept of its header. */
struct opened {
	struct address client;
	struct address proxy;    /* SPP */
	__be16 proxy_port;
	__be16 said_client_port;
	__be16 client_port;
	__u16 unused;
	__u32 header_len;        /* 0: it had none */
	__u32 is_named;          /* the client is another than the sender */
	__u32 is_spp;
};

/* What is too large for the stack. */
struct desk {
	struct datagram datagram;
	struct datagram delivered;
	struct opened opened;
	struct ip on_loopback;
	struct udp_key key;
	struct udp_flow flow;
	struct hidden hidden;
	/* What the last one's sender may do: there are few senders. */
	struct address sender;
	__u32 rule;
	__u32 edition;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct desk);
} desks SEC(".maps");

static __always_inline int refuse(const struct gate *gate, enum counter reason)
{
	count(&gate->port, reason);
	return DROP;
}

/* Sent to a group: no route says "here" of those that this host has joined. */
static __always_inline int is_for_many(const struct ip *ip)
{
	if (ip->version == 4)
		return bpf_ntohl(ip->destination.word[3]) >> 28 == 14; /* 224.0.0.0/4 */
	return bpf_ntohl(ip->destination.word[0]) >> 24 == 0xff; /* ff00::/8 */
}

/* What is only forwarded is nothing of ours to refuse. */
static __always_inline int refuse_if_here(struct __sk_buff *skb, const struct ip *ip, const struct gate *gate, enum counter reason)
{
	if (is_for_many(ip) || is_for_this_host(skb, ip, IPPROTO_UDP))
		return refuse(gate, reason);
	count(&gate->port, PASSED_NO_LISTENER);
	return PASS;
}

static __always_inline enum dialect dialect_of(const struct gate *gate)
{
	return gate->dialect == DIALECT_SPP ? DIALECT_SPP : DIALECT_EVERY;
}

/* Loads what a header may need of the payload. */
static __always_inline int load_start(struct __sk_buff *skb, struct workbench *bench, const struct datagram *datagram)
{
	__u32 have = datagram->payload_len < HEADER_START ? datagram->payload_len : HEADER_START;
	if (have == 0)
		return 0;
	__u32 last = have - 1;
	asm volatile("%0 &= 127" : "+r"(last));
	if (bpf_skb_load_bytes(skb, datagram->payload_at, bench->fresh, last + 1))
		return -1;
	__builtin_memcpy(bench->start, bench->fresh, HEADER_START);
	return 0;
}

/* Too short to be told from a header, or no header: where it is optional, the sender's own words. */
static __always_inline int is_bare(enum verdict verdict, const struct datagram *datagram, enum dialect dialect)
{
	__u32 signature = dialect == DIALECT_SPP ? 2 : 12;
	return verdict == NOT_PROXY || (verdict == NEED_MORE && datagram->payload_len < signature);
}

/* The reason to refuse it, or 0. */
GLOBAL int open_datagram(struct __sk_buff *skb, const struct datagram *datagram, const struct gate *gate, __u32 rule,
			 struct opened *opened)
{
	if (!datagram || !gate || !opened)
		return FAILED;
	__u32 only = 0;
	struct workbench *bench = workbench();
	struct settings *settings = bpf_map_lookup_elem(&tp_settings, &only);
	enum dialect dialect = dialect_of(gate);

	if (!bench || !settings || load_start(skb, bench, datagram))
		return FAILED;
	enum verdict verdict = read_datagram_header(bench, datagram->payload_len, dialect);
	const struct header *header = &bench->header;
	__builtin_memset(opened, 0, sizeof(*opened));
	opened->client = datagram->ip.source;
	opened->client_port = datagram->source_port;
	if (is_bare(verdict, datagram, dialect))
		return rule == RULE_OPTIONAL ? 0 : REFUSED_NO_HEADER;
	if (verdict == NEED_MORE || verdict == MALFORMED || header->len > datagram->payload_len)
		return REFUSED_MALFORMED;
	if (header->len > settings->header_max)
		return REFUSED_TOO_LONG;
	opened->header_len = header->len;
	if (verdict != ADDRESSES)
		return 0;
	opened->client = header->client;
	/* Nobody can be answered on port 0. */
	if (header->client_port)
		opened->client_port = header->client_port;
	opened->is_named = 1;
	if (dialect == DIALECT_SPP) {
		const struct spp *spp = (const struct spp *)bench->start;
		opened->is_spp = 1;
		opened->said_client_port = header->client_port;
		__builtin_memcpy(&opened->proxy, spp->proxy, sizeof(opened->proxy));
		__builtin_memcpy(&opened->proxy_port, spp->proxy_port, sizeof(opened->proxy_port));
	}
	return 0;
}

static __always_inline int is_ipv4(const struct address *address)
{
	return address->word[0] == 0 && address->word[1] == 0 && address->word[2] == MAPPED;
}

/* Whether the client may be shown, and can be; the reason to refuse it, or 0. */
static __always_inline int judge_client(const struct datagram *datagram, const struct gate *gate, struct opened *opened)
{
	enum counter refusal = judge(&opened->client, opened->is_named);

	if (refusal)
		return refusal;
	if (!opened->is_named) {
		count(&gate->port, opened->header_len ? NAMED_ITSELF : HEADER_ABSENT);
		return 0;
	}
	if (is_ipv4(&opened->client) == (datagram->ip.version == 4))
		return 0;
	/* A datagram has one family; its answers must have their header back, which says whose they are. */
	if (opened->is_spp)
		return REFUSED_FAMILY;
	count(&gate->port, CLIENT_NOT_SHOWABLE);
	opened->client = datagram->ip.source;
	opened->client_port = datagram->source_port;
	opened->is_named = 0;
	return 0;
}

/* What to do with a backend that was found. */
enum giving {
	ONLY_LOOK,
	OFFER, /* spare the kernel to look for it once more; of a group of sockets, Linux before 6.6 takes no offer */
	GIVE,  /* whatever address it is bound to */
};

/* Whether a backend is bound for it. */
GLOBAL int find_backend(struct __sk_buff *skb, const struct ip *ip, __be16 client_port, __be16 backend_port, enum giving giving)
{
	struct bpf_sock_tuple tuple = {};

	if (!ip)
		return 0;
	__u32 len = tuple_of(ip, client_port, backend_port, &tuple);
	struct bpf_sock *sk = len == sizeof(tuple.ipv4)
		? bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0)
		: bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	long failed = giving == ONLY_LOOK ? 0 : bpf_sk_assign(skb, sk, 0);
	bpf_sk_release(sk);
	return giving != GIVE || !failed;
}

enum backend { NO_BACKEND, IS_BOUND, IS_ON_LOOPBACK };

/* A backend on the loopback gets what came to another address of this host as it is: the kernel would not route it. */
static __always_inline enum backend backend_of(struct __sk_buff *skb, const struct datagram *datagram, const struct gate *gate,
					       const struct opened *opened, int is_here, struct ip *on_loopback)
{
	*on_loopback = datagram->ip;
	on_loopback->source = opened->client;
	/* What may have to be forwarded must not belong to a socket. */
	if (find_backend(skb, on_loopback, opened->client_port, gate->backend_port, is_here ? OFFER : ONLY_LOOK))
		return IS_BOUND;
	if (datagram->ip.version == 4)
		map_ipv4(&on_loopback->destination, bpf_htonl(0x7f000001));
	else
		on_loopback->destination = (struct address){ .word = { 0, 0, 0, bpf_htonl(1) } };
	return find_backend(skb, on_loopback, opened->client_port, gate->backend_port, ONLY_LOOK) ? IS_ON_LOOPBACK : NO_BACKEND;
}

static __always_inline int is_same_flow(const struct udp_flow *a, const struct udp_flow *b)
{
	for (__u32 at = sizeof(a->seen_ns); at < UDP_FLOW_COMPARED; at += 4)
		if (*(__u32 *)((char *)a + at) != *(__u32 *)((char *)b + at))
			return 0;
	return 1;
}

/* Nonzero: there is no tag left. Not a global function: Linux 6.1 takes no argument of such for a key. */
static __noinline int take_tag(struct udp_flow *flow, const struct udp_key *key)
{
	struct udp_tag tag = { .sender = flow->sender, .backend_port = key->backend_port };

	for (__u32 i = 0; i < 16; i++) {
		tag.tag = bpf_get_prandom_u32();
		if (tag.tag && !bpf_map_update_elem(&tp_udp_tags, &tag, key, BPF_NOEXIST)) {
			flow->tag = tag.tag;
			return 0;
		}
	}
	return -1;
}

static __always_inline int has_tag(const struct udp_flow *flow, const struct udp_key *key)
{
	struct udp_tag tag = { .sender = flow->sender, .tag = flow->tag, .backend_port = key->backend_port };
	struct udp_key *owner = bpf_map_lookup_elem(&tp_udp_tags, &tag);
	return owner && owner->client_port == key->client_port && is_same_address(&owner->client, &key->client) &&
	       is_same_address(&owner->local, &key->local);
}

/* Another address of this host was the newest one that this client's datagrams went to. */
static __always_inline void dethrone(const struct udp_key *newest)
{
	struct udp_flow *last = bpf_map_lookup_elem(&tp_udp_flows, newest);
	struct udp_key key = *newest;

	if (!last)
		return;
	key.local = last->local;
	last = bpf_map_lookup_elem(&tp_udp_flows, &key);
	if (last)
		last->is_newest = 0;
}

/* Writes the flow down where it isn't, or isn't as its newest datagram says; each second in any case, so that what was forgotten
 * of it (LRU) comes back. `known` is what is written under the key, if anything. Nonzero: it can't be. */
static __noinline int remember(const struct udp_key *key, struct udp_flow *now, struct udp_flow *known, int needs_tag)
{
	struct udp_key newest = *key;
	int is_same = known && is_same_flow(known, now) && (!needs_tag || (known->tag && has_tag(known, key)));

	now->seen_ns = bpf_ktime_get_coarse_ns();
	if (is_same && known->is_newest && known->edition == now->edition && now->seen_ns - known->seen_ns < SECOND_NS)
		return 0;
	if (is_same)
		now->tag = known->tag;
	else if (needs_tag && take_tag(now, key))
		return -1;
	newest.local = (struct address){};
	dethrone(&newest);
	now->is_newest = 1;
	if (bpf_map_update_elem(&tp_udp_flows, key, now, BPF_ANY))
		return -1;
	return bpf_map_update_elem(&tp_udp_flows, &newest, now, BPF_ANY);
}

/* What a header once said of a sender's own address and port. */
static __always_inline void forget(struct udp_key *key)
{
	bpf_map_delete_elem(&tp_udp_flows, key);
	key->local = (struct address){};
	bpf_map_delete_elem(&tp_udp_flows, key);
}

/* Nonzero: answers would not find the way to the sender. */
static __always_inline int note_flow(struct __sk_buff *skb, struct desk *desk, const struct gate *gate, enum backend backend,
				     struct udp_flow *known)
{
	const struct datagram *datagram = &desk->datagram;
	const struct opened *opened = &desk->opened;
	int needs_tag = gate->dialect == DIALECT_SPP || datagram->destination_port != gate->backend_port;

	if (!opened->is_named && !needs_tag && backend == IS_BOUND) {
		if (known)
			forget(&desk->key); /* answers go to the sender by themselves */
		return 0;
	}
	struct udp_flow *flow = &desk->flow;
	__builtin_memset(flow, 0, sizeof(*flow));
	flow->sender = datagram->ip.source;
	flow->local = datagram->ip.destination;
	flow->proxy = opened->proxy;
	flow->device = skb->ifindex;
	flow->sender_port = datagram->source_port;
	flow->port = datagram->destination_port;
	flow->proxy_port = opened->proxy_port;
	flow->said_client_port = opened->said_client_port;
	flow->slot = gate->port.slot;
	flow->is_spp = opened->is_spp;
	/* Whether it may be claimed is another question than whether it may send. */
	flow->edition = opened->is_named ? desk->edition : 0;
	return remember(&desk->key, flow, known, needs_tag);
}

/* Nonzero: it failed. */
static __always_inline int deliver(struct __sk_buff *skb, struct desk *desk, __be16 backend_port)
{
	const struct opened *opened = &desk->opened;
	struct datagram *to = &desk->delivered;
	__u32 change = 0;

	*to = desk->datagram;
	to->ip.source = opened->client;
	to->source_port = opened->client_port;
	to->destination_port = backend_port;
	if (opened->header_len) {
		to->payload_len -= opened->header_len;
		to->ip.len = ip_len_of(to);
		if (take_out(skb, &desk->datagram, opened->header_len, &change))
			return -1;
	}
	return write_datagram(skb, &desk->datagram, to, change);
}

/* The flow of this client to this address, where one has been noted: then the address is this host's, and no route need be
 * asked. */
static __always_inline struct udp_flow *find_flow(struct desk *desk, const struct gate *gate)
{
	desk->key.client = desk->opened.client;
	desk->key.local = desk->datagram.ip.destination;
	desk->key.client_port = desk->opened.client_port;
	desk->key.backend_port = gate->backend_port;
	return bpf_map_lookup_elem(&tp_udp_flows, &desk->key);
}

static __always_inline int on_datagram(struct __sk_buff *skb, struct desk *desk, const struct gate *gate)
{
	struct opened *opened = &desk->opened;
	int refusal = open_datagram(skb, &desk->datagram, gate, desk->rule, opened);
	if (refusal)
		return refuse_if_here(skb, &desk->datagram.ip, gate, refusal);
	struct udp_flow *known = find_flow(desk, gate);
	/* A claim that was judged by these very rules is judged. */
	if (!known || !opened->is_named || known->edition != desk->edition) {
		refusal = judge_client(&desk->datagram, gate, opened);
		if (refusal)
			return refuse_if_here(skb, &desk->datagram.ip, gate, refusal);
		known = find_flow(desk, gate);
	}
	enum backend backend = backend_of(skb, &desk->datagram, gate, opened, !!known, &desk->on_loopback);
	if (backend == NO_BACKEND || !(known || is_for_this_host(skb, &desk->datagram.ip, IPPROTO_UDP))) {
		count(&gate->port, PASSED_NO_LISTENER);
		return PASS;
	}
	if (note_flow(skb, desk, gate, backend, known))
		return refuse(gate, REFUSED_FULL);
	if (deliver(skb, desk, gate->backend_port))
		return refuse(gate, FAILED);
	if (backend == IS_ON_LOOPBACK && !find_backend(skb, &desk->on_loopback, opened->client_port, gate->backend_port, GIVE))
		return refuse(gate, FAILED);
	if (opened->header_len)
		count(&gate->port, gate->dialect == DIALECT_SPP ? HEADER_SPP : HEADER_V2);
	count(&gate->port, DATAGRAM);
	return PASS;
}

static __always_inline int on_aggregate(struct __sk_buff *skb, const struct datagram *all, const struct gate *gate)
{
	if (!is_for_this_host(skb, &all->ip, IPPROTO_UDP)) {
		count(&gate->port, PASSED_NO_LISTENER);
		return PASS;
	}
	if (take_apart(skb, all, BPF_F_INGRESS))
		return refuse(gate, REFUSED_AGGREGATED);
	count(&gate->port, SPLIT_UP);
	return DROP; /* its parts come instead */
}

static __always_inline __u32 rule_of(struct desk *desk)
{
	__u32 only = 0;
	struct settings *settings = bpf_map_lookup_elem(&tp_settings, &only);
	const struct address *sender = &desk->datagram.ip.source;

	if (!settings)
		return 0;
	if (desk->edition != settings->edition || !is_same_address(&desk->sender, sender)) {
		desk->edition = settings->edition;
		desk->sender = *sender;
		desk->rule = sender_rule(sender);
	}
	return desk->rule;
}

static __always_inline int on_unreadable(struct __sk_buff *skb, struct hidden *hidden)
{
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return PASS; /* IPv4's fragments are read as such */
	enum finding found = find_hidden(skb, IPPROTO_UDP, hidden);
	if (found == NOTHING_HIDDEN || !sender_rule(&hidden->ip.source))
		return PASS;
	if (found == TOO_LONG_TO_SAY)
		return is_for_this_host(skb, &hidden->ip, IPPROTO_UDP) ? refuse_too_long() : PASS;
	struct gate *gate = bpf_map_lookup_elem(&tp_gates, &hidden->destination_port);
	return gate ? refuse_if_here(skb, &hidden->ip, gate, REFUSED_FRAGMENT) : PASS;
}

SEC("classifier")
int udp_ingress(struct __sk_buff *skb)
{
	__u32 only = 0;
	struct desk *desk = bpf_map_lookup_elem(&desks, &only);
	if (!desk || skb->pkt_type == 3 /* PACKET_OTHERHOST */)
		return PASS;
	if (read_datagram(skb, &desk->datagram))
		return on_unreadable(skb, &desk->hidden);
	struct gate *gate = bpf_map_lookup_elem(&tp_gates, &desk->datagram.destination_port);
	if (!gate)
		return PASS;
	if (!rule_of(desk)) {
		count(&gate->port, PASSED_NOT_A_SENDER);
		return PASS;
	}
	if (desk->datagram.ip.is_fragment)
		return refuse_if_here(skb, &desk->datagram.ip, gate, REFUSED_FRAGMENT);
	if (skb->gso_size)
		return on_aggregate(skb, &desk->datagram, gate);
	return on_datagram(skb, desk, gate);
}

char _license[] SEC("license") = "Dual MIT/GPL";
