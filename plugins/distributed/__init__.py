"""Ray and Spark: replays and exports of an archive, and on Ray the trainer's ranks and agents, on other machines."""

from streams.plugins.plugin import Plugin, PluginEngine

PLUGIN = Plugin(
    name="distributed",
    settings="plugins.distributed.settings:Distributed",
    engines={
        "ray": PluginEngine(
            help="the cluster in RAY_ADDRESS",
            package="ray.data",
            install="pip install 'streamward[ray]'",
            archive="plugins.distributed.archive_work:on_ray",
            agents="plugins.distributed.ray_launch:agents",
            trainer="plugins.distributed.ray_launch:trainer",
        ),
        "spark": PluginEngine(
            help="as its own configuration says",
            package="pyspark",
            install="pip install 'streamward[spark]', and a Java 17 or 21",
            archive="plugins.distributed.archive_work:on_spark",
        ),
    },
)
