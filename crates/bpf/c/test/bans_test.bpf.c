/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For tests only: whether the client at the start of a packet is banned from the port after it, and what
 * looking up clients costs. */
#include "attach/proof.h" /* its table is opened with those of bans */

SEC("classifier")
int bans_test(struct __sk_buff *skb)
{
	struct address client;
	__be16 port;

	if (bpf_skb_load_bytes(skb, 0, &client, sizeof(client)) ||
	    bpf_skb_load_bytes(skb, sizeof(client), &port, sizeof(port)))
		return -1;
	return is_banned(&client, port);
}

#define CLIENTS 1000

/* A client of 192.0.0.0/8: another one each time, or the processor's cache answers. */
static __always_inline struct address any_client(void)
{
	struct address client;

	map_ipv4(&client, bpf_htonl(0xc0000000 | (bpf_get_prandom_u32() & 0xffffff)));
	return client;
}

SEC("classifier")
int bans_cost(struct __sk_buff *skb)
{
	struct address client = any_client();

	(void)skb;
	return is_banned(&client, bpf_htons(443));
}

/* Of CLIENTS clients: how many the filter leaves to the table of single addresses. */
SEC("classifier")
int bans_left(struct __sk_buff *skb)
{
	int left = 0;

	(void)skb;
	for (int i = 0; i < CLIENTS; i++) {
		struct ban_key key = { .client = any_client() };

		left += may_be_banned(&key);
	}
	return left;
}

SEC("classifier")
int bans_cost_without(struct __sk_buff *skb)
{
	struct address client = any_client();

	(void)skb;
	return !client.word[3];
}

char _license[] SEC("license") = "Dual MIT/GPL";
