import jax, jax.numpy as jnp, numpy as np
import epd.jax as ep
def check_round(world):
    world.bootstrap()
    p = world.problem(1, tokens=8)
    cfg = ep.EpLayerConfig(2)
    with world.context():
        def step(i,t,w):
            rt,rw,hm,tc,tot = ep.ep_dispatch(cfg,i,t,w,world.sizes["capacity"])
            return rt,rw,ep.ep_combine(cfg,hm,tc,rt,t.shape[0])
        rt,rw,out=jax.jit(step)(world.put(p.topk_idx),world.put(p.tokens),world.put(p.weights))
    world.expect_equal(rt,world.scatter(p,p.tokens)); world.expect_equal(rw,world.scatter_weights(p,p.weights))
    world.expect_equal(out,world.gather(p,world.scatter(p,p.tokens)))
