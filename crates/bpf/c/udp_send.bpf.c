/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Before an answer is routed: the backend has sent it to the client, it goes to the sender, from the address that the
 * client's datagrams went to. So this host needs no route to the client. */
#include "udp_maps.h"

/* Other namespaces may use the same addresses; set when it is loaded. */
const volatile __u64 netns_cookie = 0;

/* Nonzero: not from a backend of ours. */
static __always_inline int begin_key(struct bpf_sock_addr *ctx, struct udp_key *key)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return -1;
	key->backend_port = bpf_htons(sk->src_port);
	if (!bpf_map_lookup_elem(&tp_backends, &key->backend_port) || bpf_get_netns_cookie(ctx) != netns_cookie)
		return -1;
	key->client_port = ctx->user_port;
	return 0;
}

static __always_inline __be16 port_towards(const struct udp_flow *flow)
{
	return flow->tag ? flow->tag : flow->sender_port;
}

SEC("cgroup/sendmsg4")
int udp_send4(struct bpf_sock_addr *ctx)
{
	struct udp_key key = {};
	__be32 from = ctx->msg_src_ip4;

	if (begin_key(ctx, &key))
		return 1;
	key.client.word[2] = MAPPED;
	key.client.word[3] = ctx->user_ip4;
	if (from) {
		key.local.word[2] = MAPPED;
		key.local.word[3] = from;
	}
	struct udp_flow *flow = find_udp_flow(&key);
	if (!flow)
		return 1;
	if (!from || (bpf_ntohl(from) >> 24) == 127)
		ctx->msg_src_ip4 = flow->local.word[3];
	ctx->user_ip4 = flow->sender.word[3];
	ctx->user_port = port_towards(flow);
	count_at(flow->slot, ANSWER);
	return 1;
}

SEC("cgroup/sendmsg6")
int udp_send6(struct bpf_sock_addr *ctx)
{
	struct udp_key key = {};

	if (begin_key(ctx, &key))
		return 1;
	key.client.word[0] = ctx->user_ip6[0];
	key.client.word[1] = ctx->user_ip6[1];
	key.client.word[2] = ctx->user_ip6[2];
	key.client.word[3] = ctx->user_ip6[3];
	key.local.word[0] = ctx->msg_src_ip6[0];
	key.local.word[1] = ctx->msg_src_ip6[1];
	key.local.word[2] = ctx->msg_src_ip6[2];
	key.local.word[3] = ctx->msg_src_ip6[3];
	int is_chosen = (key.local.word[0] | key.local.word[1] | key.local.word[2] | key.local.word[3]) && !is_loopback(&key.local);
	struct udp_flow *flow = find_udp_flow(&key);
	if (!flow)
		return 1;
	if (!is_chosen) {
		ctx->msg_src_ip6[0] = flow->local.word[0];
		ctx->msg_src_ip6[1] = flow->local.word[1];
		ctx->msg_src_ip6[2] = flow->local.word[2];
		ctx->msg_src_ip6[3] = flow->local.word[3];
	}
	ctx->user_ip6[0] = flow->sender.word[0];
	ctx->user_ip6[1] = flow->sender.word[1];
	ctx->user_ip6[2] = flow->sender.word[2];
	ctx->user_ip6[3] = flow->sender.word[3];
	ctx->user_port = port_towards(flow);
	count_at(flow->slot, ANSWER);
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
